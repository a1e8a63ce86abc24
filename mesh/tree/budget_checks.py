"""Budgets of a config that cannot be held, or under which a model call can never be made.

`mesh.cli.shared.loaded` makes these checks for every command that reads a config. The prompt of a call is not
known yet: it has at least the text of the node's prompt and one message, so that a budget which is refused
here would let no call of the node be made.
"""

from collections.abc import Iterator, Mapping, Sequence

from mesh.config.model import Budget, Config
from mesh.config.read_model import Problem
from mesh.config.yaml_tree import Loc
from mesh.core.amounts import Amount
from mesh.core.budget import NUSD, CallRequest, least_bound, scope_of
from mesh.core.messages import User
from mesh.core.places import ROOT
from mesh.llm.prices import Prices
from mesh.tree.configured_limits import MONEY, is_priced, limits_of, llm_nodes, model_of
from mesh.tree.model_call import DEFAULT_OUTPUT, Prompt, rates, size_of
from mesh.tree.plan import PlannedNode, all_nodes, callable_agents, tree_of
from mesh.tree.template import fill

_SHORTEST_MESSAGE = (User("?"),)


def budget_problems(config: Config) -> list[str]:
    """Returns the problems as `Config.parse` reports its own."""
    return config.told(problem for each in _budgets(config) for problem in _problems(config, *each))


def _budgets(config: Config) -> Iterator[tuple[Loc, Budget, list[PlannedNode]]]:
    """Each budget with its location, and the nodes whose model calls it bounds."""
    agents = {agent.path: agent for agent in callable_agents(config)}
    locs = {node.name: loc for loc, node in config.nodes()}
    yield ("budget",), config.budget, [*llm_nodes(tree_of(config), agents)]
    for planned in all_nodes(config):
        if limits_of(planned.node.budget):
            loc = (*locs[planned.node.name], "budget")
            yield loc, planned.node.budget, [*llm_nodes(planned, agents)]


def _problems(config: Config, loc: Loc, budget: Budget, nodes: Sequence[PlannedNode]) -> Iterator[Problem]:
    limits = limits_of(budget)
    money = [limit for limit in MONEY if limit in limits]
    if money:
        yield from (((*loc, limit), problem) for limit in money for problem in _unpriced(config, nodes))
    if nodes and (money or "max_total_tokens" in limits):
        yield from _too_small(loc, limits, {node.node.name: _least(config, node) for node in nodes})


def _unpriced(config: Config, nodes: Sequence[PlannedNode]) -> Iterator[str]:
    prices = Prices(config.llm.prices)
    for model in dict.fromkeys(model_of(config, node) for node in nodes):
        if not is_priced(model, prices):
            yield f"needs to know what {model} costs; expected a price of it in llm.prices"


def _too_small(loc: Loc, limits: Mapping[str, float], least: Mapping[str, Amount]) -> Iterator[Problem]:
    """Of the nodes, the one whose calls need most is told: what is enough for it is enough for all."""
    scope = scope_of(ROOT.text, limits)
    name = max(least, key=lambda each: least[each].tokens)
    tokens = least[name].tokens
    if scope.max_tokens is not None and scope.max_tokens < tokens:
        yield (
            (*loc, "max_total_tokens"),
            f"no model call of {name} fits, which needs {tokens} tokens; expected {tokens} or more",
        )
    name = max(least, key=lambda each: least[each].nusd)
    usd = f"{least[name].nusd / NUSD:.9f}".rstrip("0").rstrip(".")
    for limit, most in zip(MONEY, (scope.max_nusd, scope.max_conversation_nusd), strict=True):
        if most is not None and most < least[name].nusd:
            yield (*loc, limit), f"no model call of {name} fits, which needs {usd}; expected {usd} or more"


def _least(config: Config, planned: PlannedNode) -> Amount:
    """The least that a model call of a node can be granted."""
    system = fill(planned.prompt, dict.fromkeys(planned.placeholders, ""))
    model, size = model_of(config, planned), size_of(Prompt(system, _SHORTEST_MESSAGE, ()))
    nusd_input, nusd_output = rates(Prices(config.llm.prices).nusd, model, size)
    request = CallRequest(
        step=ROOT.model_call(0).text,
        model=model,
        input_bytes=size,
        max_output=planned.node.parameters.max_tokens or config.llm.max_tokens or DEFAULT_OUTPUT,
        scopes=(),
        nusd_input=nusd_input,
        nusd_output=nusd_output,
    )
    return least_bound(request)
