"""The ``budget`` of a request, which can only tighten that of the agent."""

from functools import cached_property
from typing import Any

from pydantic import ValidationError

from mesh.config.model import Budget, Config
from mesh.config.problem_texts import problems_of, spelled
from mesh.core.agent_limits import OF_TURN
from mesh.core.errors import BadRequest
from mesh.tree.configured_limits import MONEY, limits_of, limits_of_turn, unpriced_models

_LONGEST_KEY = 64


class RequestBudgets:
    """Reads the budgets of requests to the agent of a config."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._own = {"max_agents": OF_TURN, **limits_of_turn(config)}

    def limits_in(self, body: dict[str, Any]) -> dict[str, float]:
        """The limits that a body sets for its turn, by key; none without a ``budget``. Raises `BadRequest`
        for what is not understood, what would loosen a limit, and what cannot be held."""
        if "budget" not in body:
            return {}
        if body.get("message") is None:
            raise BadRequest('"budget" bounds the turn that a message begins: "message" is missing')
        limits = _parsed(body["budget"])
        for key, limit in limits.items():
            own = self._own.get(key)
            if own is not None and limit > own:
                raise BadRequest(
                    f'"budget.{key}" is {limit}, which is over the {own} that this agent allows a turn; '
                    "a request can only tighten it"
                )
        if any(key in limits for key in MONEY) and self._unpriced:
            models = ", ".join(self._unpriced)
            raise BadRequest(f'"budget.max_cost_usd" needs a price of {models}; there is none in llm.prices')
        return limits

    @cached_property
    def _unpriced(self) -> list[str]:
        # On the first request with a budget: the lists of prices take 0.1 s to load.
        return unpriced_models(self._config)


def _parsed(budget: Any) -> dict[str, float]:
    if not isinstance(budget, dict) or None in budget.values():
        raise BadRequest('"budget" must be an object of limits, such as {"max_cost_usd": 0.5}')
    try:
        return limits_of(Budget.model_validate(budget))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        problems = [
            f'"budget.{spelled(loc)[:_LONGEST_KEY]}" {message}'
            for loc, message in problems_of(errors, Budget, budget)
        ]
        raise BadRequest("; ".join(problems[:4])) from None
