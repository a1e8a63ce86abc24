"""What the budgets of a config bound: their limits, the nodes below each, the prices that they need. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from mesh.config.model import Budget, Config
from mesh.core.budget import BudgetKey, LimitName, tightest
from mesh.core.events import LlmCall
from mesh.core.places import ROOT
from mesh.llm.prices import Prices
from mesh.tree.plan import PlannedNode, callable_agents, tree_of

MONEY: tuple[LimitName, ...] = ("max_cost_usd", "max_conversation_cost_usd")
"""The limits that need prices."""

_KEYS: tuple[BudgetKey, ...] = (*get_args(LimitName), "max_agents")


def limits_of(budget: Budget) -> dict[str, float]:
    """The limits of a budget, by its keys."""
    limits = ((limit, getattr(budget, limit, None)) for limit in _KEYS)
    return {limit: value for limit, value in limits if value is not None}


def limits_schema(*, with_money: bool) -> dict[str, Any]:
    """The keys of a budget that bounds any run, each with the JSON Schema of its value. ``with_money``: also
    those that need prices."""
    keys = Budget.model_json_schema()["properties"]
    return {key: keys[key]["anyOf"][0] for key in keys if with_money or key not in MONEY}


def limits_of_turn(config: Config) -> dict[str, float]:
    """The limits of a turn: those at the top of the config, and those of the root node."""
    return tightest(limits_of(config.tree.budget), limits_of(config.budget))


def limits_by_path(config: Config) -> dict[str, dict[str, float]]:
    """The limits of all runs that have some, by the paths of their nodes."""
    nodes = (node for tree in (tree_of(config), *callable_agents(config)) for node in tree.walk())
    limits = {node.path: limits_of(node.node.budget) for node in nodes}
    limits[ROOT.path] = limits_of_turn(config)
    return {path: own for path, own in limits.items() if own}


def unpriced_models(config: Config) -> list[str]:
    """The models without a known price that a turn may call."""
    agents = {agent.path: agent for agent in callable_agents(config)}
    prices = Prices(config.llm.prices)
    models = (model_of(config, node) for node in llm_nodes(tree_of(config), agents))
    return [model for model in dict.fromkeys(models) if not is_priced(model, prices)]


def priced_models(config: Config) -> dict[str, bool]:
    """The models of the config, each with whether it is known what its calls cost."""
    prices = Prices(config.llm.prices)
    return {model: is_priced(model, prices) for _, model in config.models()}


def is_priced(model: str, prices: Prices) -> bool:
    """Whether it is known what calls of a model cost."""
    return prices.cost(LlmCall(model=model)) is not None


def model_of(config: Config, planned: PlannedNode) -> str:
    """The model that an llm node calls."""
    return planned.node.model or config.llm.model


def llm_nodes(planned: PlannedNode, agents: Mapping[str, PlannedNode]) -> Iterator[PlannedNode]:
    """The nodes that may call models in a run of a node: those at and below it, and those of the agents that
    they may call, which ``agents`` has by name. Agents may call each other in circles."""
    seen: set[str] = set()
    waiting = [planned]
    while waiting:
        for each in waiting.pop().walk():
            if each.path in seen:
                continue
            seen.add(each.path)
            waiting += [agents[name] for name in each.node.called]
            if each.node.type == "llm":
                yield each
