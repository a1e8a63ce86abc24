"""Tries the examples of the rules of a config, and looks for rules that can never decide.

Commands are parsed, so it runs a process for each. Only ``mesh check`` asks for it.
"""

from collections.abc import Iterator
from typing import Any

from mesh.config.model import Config
from mesh.config.node_policies import rules_of
from mesh.config.policy import NodePolicyOptions, PolicyOptions, RuleOptions
from mesh.config.read_model import Problem
from mesh.config.yaml_tree import Loc
from mesh.policy.examples import matches_example
from mesh.policy.shadowed import shadowed_by
from mesh.policy.shell import parse_now


def example_problems(config: Config) -> list[str]:
    """The examples that are wrong, each with its line."""
    return config.told(problem for loc, _, rule in rules_of(config) for problem in _wrong(loc, rule))


def never_deciding(config: Config) -> list[str]:
    """A warning for each rule that can never decide."""
    found: list[str] = []
    for loc, policy in _policies(config):
        rules = [rule.compiled() for rule in policy.rules]
        for index in range(len(rules)):
            if other := shadowed_by(rules, index):
                where = config.location(*loc, "rules", index)
                found.append(f"{where}: it can never decide, because {other} holds wherever it does")
    return found


def _policies(config: Config) -> Iterator[tuple[Loc, PolicyOptions | NodePolicyOptions]]:
    if config.policy is not None:
        yield ("policy",), config.policy
    for loc, node in config.nodes():
        if node.policy is not None:
            yield (*loc, "policy"), node.policy


def _wrong(loc: Loc, rule: RuleOptions) -> Iterator[Problem]:
    for side, examples, wanted in (
        ("match", rule.examples.match, True),
        ("not", rule.examples.no_match, False),
    ):
        for index, example in enumerate(examples):
            if _matches(rule, example) is not wanted:
                says = "the rule does not match it" if wanted else "the rule matches it"
                yield (*loc, "examples", side, index), f"{says}; change the rule or the example"


def _matches(rule: RuleOptions, example: str | dict[str, Any]) -> bool:
    parsed = parse_now(example) if rule.command and isinstance(example, str) else None
    return matches_example(rule.compiled(), example, parsed)
