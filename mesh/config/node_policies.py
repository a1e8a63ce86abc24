"""Which policies hold for a node: that of its agent, and those of the nodes down to it."""

from collections.abc import Iterator

from mesh.config.model import AgentNode, Config
from mesh.config.policy import NodePolicyOptions, RuleOptions
from mesh.config.yaml_tree import Loc
from mesh.policy.layer import Policy
from mesh.policy.rules import RuleSet


def policy_of(config: Config, node: str) -> Policy:
    """The policy of the calls that a node makes. Without ``policy:`` the hints decide, as they always did."""
    agent = RuleSet() if config.policy is None else config.policy.rule_set()
    return Policy(agent, [policy.rule_set(name) for name, policy in _tightening(config, node)])


def rules_of(config: Config) -> Iterator[tuple[Loc, str, RuleOptions]]:
    """Yields every rule of the config, with its location and the node that owns it, empty for the agent."""
    if config.policy is not None:
        yield from _listed(("policy", "rules"), "", config.policy.rules)
    for loc, node in config.nodes():
        if node.policy is not None:
            yield from _listed((*loc, "policy", "rules"), node.name, node.policy.rules)


def _listed(loc: Loc, owner: str, rules: tuple[RuleOptions, ...]) -> Iterator[tuple[Loc, str, RuleOptions]]:
    for index, rule in enumerate(rules):
        yield (*loc, index), owner, rule


def _tightening(config: Config, name: str) -> Iterator[tuple[str, NodePolicyOptions]]:
    for node in _down_to(config, name):
        if node.policy is not None:
            yield node.name, node.policy


def _down_to(config: Config, name: str) -> list[AgentNode]:
    """The nodes from a root down to one of this name, and with it."""
    nodes = dict(config.nodes())
    at = next((loc for loc, node in nodes.items() if node.name == name), ())
    return [node for loc, node in nodes.items() if loc == at[: len(loc)]]
