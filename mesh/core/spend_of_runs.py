"""What runs have used of their limits, for people: of model calls, and of agents that they start. Pure."""

from collections.abc import Iterable, Mapping

from mesh.core.agent_limits import AgentsStarted
from mesh.core.amounts import Amount
from mesh.core.budget import NUSD, BudgetUse, Scope, limits_in, scope_of, tightest
from mesh.core.events import AgentStarted, AnyEvent, Spend, UserMessage
from mesh.core.places import ROOT, Place


def spend_of(use: BudgetUse, started: AgentsStarted, scope: Scope, run: int, now: str) -> Spend:
    """What a run has used of its limits, for watchers."""
    limits = limits_in(scope)
    whole = use.use(scope.place)
    unsettled = use.unsettled(scope.place, run)
    shown_limits: dict[str, float] = {
        limit: value + use.raised.get((scope.place, limit), 0) for limit, value in limits.items()
    }

    def shown(amount: Amount) -> dict[str, float]:
        return {limit: value for limit, value in _by_limit(amount).items() if limit in limits}

    spent = shown(whole.spent)
    if "max_time_s" in limits:
        spent["max_time_s"] = round(use.time_s(scope.place, now), 3)
    if "max_conversation_cost_usd" in limits:
        spent["max_conversation_cost_usd"] = use.conversation.spent.nusd / NUSD
    if scope.max_agents is not None:
        shown_limits["max_agents"] = scope.max_agents
        spent["max_agents"] = started.below(Place(scope.place))
    return Spend(
        step=scope.place,
        limits=shown_limits,
        spent=spent,
        unsettled=shown(unsettled),
        reserved=shown(whole.held - unsettled),
    )


def turn_spend(
    events: Iterable[AnyEvent], limits: Mapping[str, Mapping[str, float]], now: str
) -> list[Spend]:
    """What the newest turn has used of its limits, and after it the runs in it that have limits of their own.
    ``limits`` are those of the agent, by node path. Those of the request, or of the start of an agent,
    tighten them."""
    use, started, own = BudgetUse(), AgentsStarted(), dict[str, Mapping[str, float]]()
    for event in events:
        use.apply(event)
        started.apply(event)
        match event:
            case UserMessage():
                own = {ROOT.text: event.budget}
            case AgentStarted() if event.budget:
                own[event.step] = event.budget
    places = [ROOT.text, *sorted({*use.uses, *started.places} - {ROOT.text})]
    bounds = ((place, tightest(limits.get(Place(place).path, {}), own.get(place, {}))) for place in places)
    scopes = [scope_of(place, bound) for place, bound in bounds if bound or place == ROOT.text]
    return [spend_of(use, started, scope, use.run, now) for scope in scopes]


def _by_limit(amount: Amount) -> dict[str, float]:
    return {
        "max_cost_usd": amount.nusd / NUSD,
        "max_total_tokens": amount.tokens,
        "max_llm_calls": amount.calls,
    }
