"""Interventions: a person tells an agent something while it works, changes it, adds an agent to it, pauses
it, lets it go on, or deletes it.

An intervention is an `AgentTold` that comes from a person. Who asked for one gets the reply when it is
journaled. While a pass runs, it goes down the calls of the pass, as what a model tells an agent does, and the
innermost node around the agent journals it: that node knows whether the agent still works. Between passes,
the keeper journals it, and the next pass knows it. What the root agent is told is always journaled here.

Invariant: of an intervention and the end of its agent, one wins. What is journaled for an agent is read by
its model, or ends it; otherwise whoever asked is told how the agent ended.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Literal
from uuid import UUID, uuid5

from msgspec import UNSET, structs

from mesh.core.agents_of_turn import AgentView
from mesh.core.errors import BadRequest, Conflict, NotFound, Unavailable
from mesh.core.events import AddedAgent, AgentStarted, AgentTold, AnyEvent, NewsAction, NodeCompleted, now
from mesh.core.ids import agent_id, new_id
from mesh.core.news import HAS_MODEL, begun_anew, copy_for, for_models_below, models_at_work, start_of
from mesh.core.places import ROOT, Place
from mesh.keeper.driver import Driver
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.requests import Intervene
from mesh.runtime.failpoints import failpoint
from mesh.tree.turn import Hearing

_WITHIN_S = 60.0
"""How long an intervention may be on its way."""


_MOST_NAME = 64
"""How many characters of a name that nobody has are said back."""


class Interventions:
    """See the module. ``digest`` is the version of the newest config, ``root`` the name of the root of its
    tree, ``root_kind`` its type. ``models`` are those that the config names, each with whether its price is
    known. ``startable`` are the agents that each node may start, by the path of the node, each with its type.
    ``allowed`` are the actions that people may take."""

    def __init__(
        self,
        driver: Driver,
        digest: str,
        root: str,
        root_kind: str,
        models: Mapping[str, bool],
        startable: Mapping[str, Mapping[str, str]],
        allowed: Collection[NewsAction],
    ) -> None:
        self._driver = driver
        self._digest = digest
        self._root = root
        self._root_kind = root_kind
        self._startable = startable
        self._models = models
        self._allowed = allowed

    async def intervene(self, loaded: LoadedConversation, request: Intervene) -> None:
        """Carries an intervention out. Raises `BadRequest`, `NotFound`, `Conflict`, `Unavailable`,
        `JournalError`."""
        if request.action not in self._allowed:
            allowed = ", ".join(self._allowed) or "nothing"
            raise Conflict(
                f"the config does not let people {request.action} agents, but: {allowed} (intervene)"
            )
        try:
            # One after the other for each agent, as news on its way down may overtake other news.
            async with asyncio.timeout(_WITHIN_S), loaded.intervening(request.agent):
                if self._is_known(loaded, request):  # the same request came in between
                    await self._repeat(loaded, request)
                elif request.action == "delete":
                    await self._delete(loaded, request)
                elif request.restarts:
                    await self._restart(loaded, request)
                else:
                    await self._tell(loaded, request)
        except TimeoutError:
            late = f"agent {request.agent} did not take this within {_WITHIN_S:g} s; it may still do"
            raise Unavailable(late) from None

    async def repeat(self, loaded: LoadedConversation, request: Intervene) -> None:
        """What comes of an intervention that is journaled already. Raises as `intervene`."""
        try:
            async with asyncio.timeout(_WITHIN_S), loaded.intervening(request.agent):
                await self._repeat(loaded, request)
        except TimeoutError:
            raise Unavailable(f"agent {request.agent} takes no news; try again") from None

    def _is_known(self, loaded: LoadedConversation, request: Intervene) -> bool:
        agents, key = loaded.conversation.agents, request.caller.idempotency_key
        agent = agents.view(request.agent)
        return bool(key) and agent is not None and agents.knows(_id(loaded.conversation.id, agent, key))

    async def _repeat(self, loaded: LoadedConversation, request: Intervene) -> None:
        agents = loaded.conversation.agents
        agent = agents.view(request.agent)
        if agent is None:  # its turn is long over
            return
        id = _id(loaded.conversation.id, agent, request.caller.idempotency_key)
        if not agents.knows(id):  # of an earlier turn: the root agent has the same id in each
            return
        told = agents.told(id)
        if agent.place == ROOT.text and request.action == "delete":
            await self._end_turn(loaded, agent.turn)
        elif told is None:
            await self._tell_the_rest(loaded, agent, request)
        elif agents.has_read(told) or agents.is_outdated(told):
            return
        elif told.is_read or not agent.has_ended:
            _at_work(loaded, agent.agent_id)  # raises if it has ended without reading it
            # The request before may have failed on the way down.
            if loaded.pass_under_way is not None:
                await loaded.pass_under_way.root.hear(told, is_durable=True)
            elif told.stops:
                await self._append(loaded, agent, [_end(agent, told)])
                self._driver.start(loaded)

    async def _tell_the_rest(self, loaded: LoadedConversation, agent: AgentView, request: Intervene) -> None:
        """Some of the models below an agent have been told a comment: tells the others, if the request before
        failed on the way down. Raises `Conflict` if none of those that were told reads it any more."""
        told = self._told(loaded, agent, request)
        if not for_models_below(told):
            return
        try:
            await self._hand_down(loaded, told, partial(_copies, loaded, told))
        except Conflict:
            if not _is_taken(loaded, told):
                raise

    def _kind_of(self, agent: AgentView) -> str:
        return agent.kind or self._root_kind  # journals of earlier versions do not say that of the root

    async def _tell(self, loaded: LoadedConversation, request: Intervene) -> None:
        agent = _at_work(loaded, request.agent)
        self._check(loaded, request)
        told = self._told(loaded, agent, request)
        if for_models_below(told):
            await self._hand_down(loaded, told, partial(_copies, loaded, told))
            return
        if told.is_read and told.kind != HAS_MODEL:
            raise _mute(agent)
        start = start_of(told, loaded.conversation.id)
        events: list[AnyEvent] = [told] if start is None else [told, start]
        if agent.place != ROOT.text:
            await self._hand_down(loaded, told, lambda: events)
            return
        await self._append(loaded, agent, events)
        if loaded.pass_under_way is not None:
            # If the root has ended meanwhile, its end is not journaled yet, and will not be: another pass
            # follows (`LoadedConversation.has_news_for_root`).
            await loaded.pass_under_way.root.hear(told, is_durable=True)
        self._driver.start(loaded)

    def _check_version(self, loaded: LoadedConversation, what: str) -> None:
        """Raises `Conflict` where a turn stays on an older config, of which it is not known here what
        it has."""
        if loaded.conversation.digest != self._digest:
            raise Conflict(f"the turn goes on with the config that it began with: {what}")

    def _check(self, loaded: LoadedConversation, request: Intervene) -> None:
        budget, model = request.changes.budget, request.changes.model
        if budget is not UNSET and budget.max_cost_usd is not UNSET:
            self._check_prices()
        if model is UNSET:
            return
        self._check_version(loaded, "no agent of it can get another model")
        if model not in self._models:
            raise BadRequest(f"no node has the model {model}; there are {', '.join(sorted(self._models))}")
        agent = loaded.conversation.agents.view(request.agent)
        if not self._models[model] and agent and loaded.has_money_limit(Place(agent.place)):
            problem = f"it is not known what the model {model} costs, and max_cost_usd bounds this turn"
            raise Conflict(f"{problem}: give its price in llm.prices")

    def _told(self, loaded: LoadedConversation, agent: AgentView, request: Intervene) -> AgentTold:
        caller = request.caller
        id = _id(loaded.conversation.id, agent, caller.idempotency_key)
        return AgentTold(
            turn=agent.turn,
            step=agent.place,
            time=now(),
            id=id,
            text=request.text,
            by=caller.by,
            action=request.action,
            changes=request.changes.given,
            before=loaded.conversation.agents.before(agent.place, request.changes.given),
            now=request.now,
            adds=self._added(loaded, agent, request.adds, id) if request.adds else None,
            from_person=True,
            name=agent.name,
            kind=self._kind_of(agent),
            idempotency_key=caller.idempotency_key,
            body_hash=caller.body_hash,
        )

    def _added(self, loaded: LoadedConversation, agent: AgentView, name: str, id: str) -> AddedAgent:
        self._check_version(loaded, "no agent can be added to it")
        place = Place(agent.place)
        startable = self._startable.get(place.path)
        if not startable:
            raise Conflict(f"agent {agent.name} starts no agents, so that none can be added to it (spawn)")
        if name not in startable:
            raise BadRequest(
                f"agent {agent.name} starts no agent {name[:_MOST_NAME]}, but: {', '.join(sorted(startable))}"
            )
        at = place.added_agent(name, loaded.number_of_added(id))
        return AddedAgent(at.below(place), startable[name], (self._root, *at.called_agents))

    def _check_prices(self) -> None:
        """Raises `Conflict` if a limit of money could not be held."""
        if unpriced := sorted(model for model, is_priced in self._models.items() if not is_priced):
            problem = f"it is not known what the model {unpriced[0]} costs, and max_cost_usd needs that"
            raise Conflict(f"{problem}: give its price in llm.prices")

    async def _delete(self, loaded: LoadedConversation, request: Intervene) -> None:
        agent = _at_work(loaded, request.agent)
        told = self._told(loaded, agent, request)
        if agent.place == ROOT.text:
            await self._append(loaded, agent, [told])
            await self._end_turn(loaded, told.turn)
            return
        if (call := Place(agent.place).call) and call.validated:
            around = f"delete the one around it: {agent.parent_id}"
            raise Conflict(f"agent {agent.name} checks an answer, which counts only once it has; {around}")
        await self._hand_down(loaded, told, lambda: [told, _end(agent, told)])

    async def _restart(self, loaded: LoadedConversation, request: Intervene) -> None:
        agent = _at_work(loaded, request.agent)
        self._check(loaded, request)
        if agent.place == ROOT.text:
            raise Conflict(
                "the root agent begins anew with the next message: cancel its turn, and send it again"
            )
        told, place = self._told(loaded, agent, request), Place(agent.place)
        if not _starts_at(loaded, place):
            around = loaded.conversation.agents.view(agent.parent_id or "")
            raise Conflict(
                f"{agent.name} is a node of an agent, and only agents begin anew; "
                f"above it is {around.name if around else 'the root agent'}"
            )
        changed = loaded.conversation.agents.changes(agent.place)
        told = structs.replace(told, changes=told.added_to(changed), restarts=True)

        def between_passes() -> list[AnyEvent]:
            (start,) = _starts_at(loaded, place)
            return [told, *begun_anew(told, start, loaded.conversation.id)]

        await self._hand_down(loaded, told, between_passes)

    async def _end_turn(self, loaded: LoadedConversation, turn: int) -> None:
        """Returns when a turn has ended whose root agent is deleted, which the journal says. It ends also if
        nobody waits for that."""
        if loaded.turn == turn:
            loaded.cancel_pass()
        while loaded.turn == turn and loaded.needs_pass:
            await asyncio.shield(self._driver.start(loaded))

    async def _hand_down(
        self,
        loaded: LoadedConversation,
        told: AgentTold,
        between_passes: Callable[[], Sequence[AnyEvent]],
    ) -> None:
        """Hands an intervention down the pass that runs, as often as passes end meanwhile; or journals what
        it comes to ``between_passes``, which is nothing if nobody could take it."""
        agents = loaded.conversation.agents
        with loaded.waiting_at(told.place) as waiter:
            while True:
                agent = _at_work(loaded, agents.around(told.place))
                if not loaded.is_open(told.turn) or agent.turn != told.turn:
                    raise Conflict(f"agent {agent.name} has ended with its turn")
                if loaded.ends_now:
                    raise Conflict(f"agent {agent.name} is about to end, with its turn")
                under_way = loaded.pass_under_way
                if under_way is None:
                    events = between_passes()
                    if not events:
                        raise _mute(agent)
                    if await self._append(loaded, agent, events, is_between=True):
                        self._driver.start(loaded)
                        return
                    continue
                heard = await under_way.root.hear(told, is_durable=False)
                failpoint("intervention.heard")
                if heard is None:  # with the pass, the reply may have been lost to what it led to
                    await under_way.over.wait()
                elif heard == "ended":
                    # Its node knows that before the journal does. If the pass is lost, the journal never
                    # hears it, and the agent goes on in the next one.
                    await waiter.wait()
                # An agent may end right before it takes what was journaled for it.
                if heard == "taken" or (told.stops and agents.knows(told.id)):
                    return
                if _was_taken_all_the_same(loaded, told, heard):
                    return
                if heard == "full":
                    raise Conflict(f"agent {agent.name} may start no more agents in this turn (max_agents)")
                if heard in ("mute", "unknown"):
                    raise _mute(agent)

    async def _append(
        self,
        loaded: LoadedConversation,
        agent: AgentView,
        events: Sequence[AnyEvent],
        *,
        is_between: bool = False,
    ) -> bool:
        """Journals an intervention. Raises `Conflict` if the agent has ended by then. Returns False if it is
        to be journaled between passes, and one has begun."""
        starts = [event for event in events if isinstance(event, AgentStarted)]

        def is_possible() -> bool:
            if refusal := next(filter(None, map(loaded.refusal, starts)), ""):
                raise Conflict(refusal)
            if not loaded.is_open(events[0].turn) or loaded.conversation.has_ended(Place(agent.place)):
                return False
            return not loaded.ends_now and not (is_between and loaded.pass_under_way is not None)

        if await loaded.append(events, only_if=is_possible):
            return True
        _at_work(loaded, agent.agent_id)
        # Invariant: whoever tries again has waited for something, as the pass that has begun is to be told.
        if is_between and loaded.pass_under_way is not None:
            return False
        raise Conflict(f"agent {agent.name} is about to end")


def _view(loaded: LoadedConversation, id: str) -> AgentView:
    found = loaded.conversation.agents.view(id)
    if found is None:
        raise NotFound(f"there is no agent {id} at work")
    return found


def meant_by(loaded: LoadedConversation, request: Intervene) -> AgentView | None:
    """The agent that the reply to an intervention is about: the one that was added, or has begun anew, or
    else the one that was meant. None if it is of an earlier turn."""
    agents, key = loaded.conversation.agents, request.caller.idempotency_key
    agent = agents.view(request.agent)
    if agent is None or not (request.adds or request.restarts):
        return agent
    told = agents.told(_id(loaded.conversation.id, agent, key))
    if key and told is None:
        return None
    if request.restarts:
        return agents.at(Place(agent.place).anew) or agent
    added = agents.at(Place(f"{told.step}.{told.adds.handle}")) if told and told.adds else None
    return added or agent


def shown_for(told: AgentTold, conversation_id: str) -> str:
    """The id of the agent that the reply to an intervention is about: see `meant_by`."""
    place = told.place
    if told.adds is not None:
        place = Place(f"{told.step}.{told.adds.handle}")
    elif told.restarts:
        place = place.anew
    return conversation_id if place == ROOT else agent_id(conversation_id, told.turn, place)


def _at_work(loaded: LoadedConversation, id: str) -> AgentView:
    """An agent that has not ended. Raises `Conflict`, which says how and when it did, or `NotFound`."""
    agent = _view(loaded, id)
    if agent.has_ended:
        raise has_ended(agent)
    return agent


def _starts_at(loaded: LoadedConversation, place: Place) -> list[AgentStarted]:
    """The start of the agent at a place; none if a node is there that is only a part of an agent."""
    within = loaded.conversation.within(place)
    return [event for event in within if isinstance(event, AgentStarted) and event.place == place]


def has_ended(agent: AgentView) -> Conflict:
    """That nobody can step in with an agent any more: how and when it ended."""
    how: dict[str, Literal["was deleted", "failed", "has answered"]]
    how = {"deleted": "was deleted", "error": "failed"}
    return Conflict(
        f"agent {agent.name} {how.get(agent.status, 'has answered')} at {agent.ended_at}: {agent.result}"
    )


def _is_taken(loaded: LoadedConversation, told: AgentTold) -> bool:
    """Whether an intervention is journaled, and a comment has been read, or is read by an agent at work."""
    agents = loaded.conversation.agents
    return any(
        not each.is_read or agents.has_read(each) or not loaded.conversation.has_ended(each.place)
        for each in agents.copies_of(told)
    )


def _was_taken_all_the_same(loaded: LoadedConversation, told: AgentTold, heard: Hearing | None) -> bool:
    """Whether an intervention for which there was no reply, or which came too late, was taken: by the pass
    that has ended, or because the same request had been sent before and was under way."""
    agents = loaded.conversation.agents
    if heard == "ended":
        return any(map(agents.has_read, agents.copies_of(told)))
    return heard is None and _is_taken(loaded, told)


def _mute(agent: AgentView) -> Conflict:
    return Conflict(f"no model of agent {agent.name}, or below it, is at work that could read this")


def _copies(loaded: LoadedConversation, told: AgentTold) -> list[AgentTold]:
    """What the models are told that wait for something, if a comment is for all models below a node."""
    places = models_at_work(loaded.conversation.outcomes, told.place)
    return [copy_for(told, place) for place in places]


def _end(agent: AgentView, told: AgentTold) -> NodeCompleted:
    return NodeCompleted(
        turn=told.turn,
        step=told.step,
        name=agent.name,
        status="deleted",
        text=told.end_text,
        time=told.time,
    )


def _id(conversation_id: str, agent: AgentView, key: str) -> str:
    """The id of an intervention: with an Idempotency-Key always the same one, so that two of the same request
    are one, even if both are under way."""
    return str(uuid5(UUID(conversation_id), f"{agent.turn}|{agent.place}|{key}")) if key else new_id()
