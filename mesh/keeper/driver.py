"""Drives turns: one task a conversation, which runs passes until the turn ends or waits for a person.

A turn belongs to its driver, not to the request that started it: requests wait for the driver, and
one that goes away leaves it running.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

import msgspec

from mesh.core.errors import (
    JournalError,
    JournalRefused,
    NodeLost,
    StaleEpoch,
    Unavailable,
    WrongSequence,
)
from mesh.core.events import AnyEvent, Completed, Error, NodeCompleted, Paused, ToolResult, moment
from mesh.core.places import Place
from mesh.keeper.loaded_conversation import LoadedConversation, PassUnderWay
from mesh.net.backoff import Backoff, Patience, jittered
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields
from mesh.tracing.spans import Tracer, TurnOfTrace
from mesh.tree.node import STOPPED_BY_PERSON
from mesh.tree.nodes_below import RunningNode
from mesh.tree.turn import (
    AbandonedTask,
    Activation,
    Hearing,
    News,
    PassInput,
    PassOutput,
    Tree,
    UnsettledCall,
)

_log = logging.getLogger("mesh.keeper")
_CANCEL_WITHIN_S = 5.0
_LOST_PASSES = Backoff(first_s=0.1, longest_s=10.0)


class EndsNow(Exception):
    """The turn ends without the rest of its pass: it is cancelled, or an agent returned to the user. Unwinds
    the pass; never leaves the driver."""


class _Trouble:
    """A row of failures: since when it lasts, what the last one was, and when to try again."""

    def __init__(self) -> None:
        self.problem = ""
        self._patience = Patience(_LOST_PASSES)
        self._before_s = 0.0

    def began_before(self, seconds: float) -> None:
        """The row of failures is at least so long: it began within the pass."""
        self._before_s = max(self._before_s, seconds)

    @property
    def lasted_s(self) -> float:
        return self._before_s + self._patience.lasted_s

    def pause(self, problem: Unavailable | JournalError) -> float:
        """How many seconds to wait after this problem."""
        self.problem = str(problem)
        if isinstance(problem, Unavailable):
            return jittered(problem.retry_after_s)  # our own actors: they are back sooner than they say
        return self._patience.next_delay()


class _Root:
    """The root of the tree, as `RunNode`."""

    def __init__(self, tree: Tree, digest: str) -> None:
        self._tree = tree
        self._digest = digest

    async def __call__(self, turn: PassInput) -> PassOutput:
        return await self._tree.run(turn)

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        return await self._tree.hear(self._digest, activation, news, is_durable)


class Driver:
    """Runs the turns of a keeper's conversations. ``digest`` is the newest version of the agent;
    ``turn_timeout_s`` bounds a pass, ``unavailable_for_s`` how
    long passes may be lost in a row before the turn fails. With a ``tracer`` those that a turn calls continue
    its trace."""

    def __init__(
        self,
        tree: Tree,
        digest: str,
        turn_timeout_s: float,
        unavailable_for_s: float,
        tracer: Tracer | None = None,
    ) -> None:
        self._tree = tree
        self._digest = digest
        self._turn_timeout_s = turn_timeout_s
        self._unavailable_for_s = unavailable_for_s
        self._tracer = tracer
        self._calling_off: set[asyncio.Task[None]] = set()

    def start(self, loaded: LoadedConversation) -> asyncio.Task[None]:
        """Returns the task that drives the open turn, and starts it if there is none: there is one at
        most."""
        if loaded.driver is None or loaded.driver.done():
            loaded.driver = asyncio.create_task(self._passes(loaded))
            loaded.driver.add_done_callback(_retrieve)
        return loaded.driver

    async def run_to_completion(self, loaded: LoadedConversation) -> None:
        """Runs passes until the open turn ends or waits for a person. A caller may be cancelled: the
        turn goes on."""
        loaded.check_current()
        while loaded.needs_pass:
            await asyncio.shield(self.start(loaded))

    async def cancel(self, loaded: LoadedConversation) -> None:
        """Cancels the open turn: no new step of it starts. A tool call that runs and must not run twice is
        waited for, so that its result is in the journal."""
        turn = loaded.turn_to_cancel = loaded.turn
        abandoned: list[AbandonedTask] = []
        try:
            loaded.cancel_pass()
            while loaded.needs_pass and loaded.turn == turn:
                await asyncio.shield(self.start(loaded))
            abandoned = _abandoned_tasks(loaded)
            await self._append_end(loaded, turn)
        finally:
            loaded.turn_to_cancel = 0
        await self._cancel_tasks(abandoned)

    async def _passes(self, loaded: LoadedConversation) -> None:
        """Runs pass after pass. One that was lost, with the process of a node for instance, is followed by
        another: what it learned and claimed is in the journal, and from then on it can neither claim nor
        record. Trouble with the journal is waited out in the same way."""
        trouble: _Trouble | None = None
        while loaded.needs_pass:
            was_refused = bool(loaded.refused_because)
            try:
                await self._pass_or_end(loaded, trouble)
                trouble = None
            except (Unavailable, JournalError) as problem:
                if was_refused and isinstance(problem, JournalRefused):
                    raise  # not even the end of the turn can be journaled
                if isinstance(problem, StaleEpoch | WrongSequence):
                    raise  # what is loaded is not the journal any more: the shard drops it, or is left
                if loaded.is_journal_failing and await loaded.drop_held_message():
                    raise  # nothing of the turn is durable, so its message is refused
                _log.warning("event=pass_lost %s %s", loaded.label, fields(message=problem))
                trouble = trouble or _Trouble()
                if isinstance(problem, NodeLost):
                    trouble.began_before(self._unavailable_for_s)
                await asyncio.sleep(trouble.pause(problem))

    async def _pass_or_end(self, loaded: LoadedConversation, trouble: "_Trouble | None") -> None:
        """Runs the next pass; or ends the turn, if it is to be cancelled, trouble has lasted for too long, or
        the journal would refuse the next pass too, or has lost a part of the turn."""
        longest = self._turn_timeout_s if loaded.is_journal_failing else self._unavailable_for_s
        is_over = trouble is not None and trouble.lasted_s > longest
        why = loaded.refused_because or loaded.conversation.ends_because
        if is_over or why:
            message = why or f"no node could run the turn: {trouble and trouble.problem}"
            results, abandoned = await self._settle_all(loaded), _abandoned_tasks(loaded)
            await loaded.append([*results, Error(turn=loaded.turn, message=message)])
            await self._cancel_tasks(abandoned)
            return
        try:
            await self._pass(loaded)
        except EndsNow:
            abandoned = _abandoned_tasks(loaded)
            await self._append_end(loaded, loaded.turn)
            await self._cancel_tasks(abandoned)

    async def _pass(self, loaded: LoadedConversation) -> None:
        if loaded.ends_now:
            raise EndsNow
        latest = moment(timedelta(seconds=self._turn_timeout_s))
        is_older = loaded.digest != self._digest
        turn = msgspec.structs.replace(
            await loaded.begin_pass(),
            deadline=latest,
            patience_s=self._unavailable_for_s,
            is_older=is_older,
        )
        if self._tracer is not None:
            traced = TurnOfTrace(turn.conversation_id, turn.turn, turn.nonce, turn.traceparent)
            turn = msgspec.structs.replace(turn, traceparent=self._tracer.forwarded(traced))
        # Nothing is awaited from the input to here: what is journaled from now on is told to this pass.
        under_way = loaded.pass_under_way = PassUnderWay(RunningNode(_Root(self._tree, turn.digest), turn))
        try:
            await self._run(loaded, turn, under_way.root)
        finally:
            loaded.end_pass()

    async def _run(self, loaded: LoadedConversation, turn: PassInput, root: RunningNode) -> None:
        """Runs a pass, and journals what came of it."""
        output = await self._output(loaded, turn, root)
        failpoint("keeper.pass_returned")
        abandoned = _abandoned_tasks(loaded)
        if output.status in ("completed", "failed", "stopped"):
            output = await self._with_settled(loaded, output)
        # Whether an agent has returned to the user is asked when it is this append's turn: that may just be
        # being journaled.
        end = partial(_end, output, turn, loaded)
        await loaded.append_from_pass(turn.activation, output.events, more=lambda _: end())
        if loaded.ends_now:
            raise EndsNow
        if not loaded.conversation.turn_open:
            await self._cancel_tasks(abandoned)
        if output.status == "interrupted":
            raise NodeLost(output.text) if output.gave_up else Unavailable(output.text)
        if output.status == "superseded" and loaded.is_current(turn.activation):
            # No other pass began, so this is a failure: the next pass begins after a pause, not at once.
            raise Unavailable("a pass ended as if another one had begun")

    async def _append_end(self, loaded: LoadedConversation, turn: int) -> None:
        """Ends the turn, with the results of the calls that were claimed in it: one that runs is waited
        for."""
        await loaded.append(())  # a claim that is just being journaled is waited for: it has to be settled
        results = await self._settle_all(loaded)
        returned = loaded.conversation.returned
        if returned is None or loaded.conversation.is_stopped or loaded.turn_to_cancel == turn:
            end = _cancelled(turn)
        else:
            end = Completed(
                turn=turn, response=returned.content, output=returned.output, invalid=returned.invalid
            )
        await loaded.append([*results, end], only_if=lambda: loaded.is_open(turn))

    async def _with_settled(self, loaded: LoadedConversation, output: PassOutput) -> PassOutput:
        """The end of a turn, with the results of the calls that an earlier pass claimed and nobody waits for
        any more: those of a called agent that is denied by now."""
        known = {event.step for event in output.events if isinstance(event, ToolResult)}
        results = await self._settle_all(loaded, known)
        return msgspec.structs.replace(output, events=[*output.events, *results]) if results else output

    async def _settle_all(self, loaded: LoadedConversation, known: Collection[str] = ()) -> list[ToolResult]:
        """The results of the calls whose outcome is not known, but for those of the steps that are."""
        calls = [call for call in _unsettled(loaded) if call.intent.step not in known]
        settled = await asyncio.gather(*(self._settle(call) for call in calls))
        return [result for result in settled if result is not None]

    async def _settle(self, call: UnsettledCall) -> ToolResult | None:
        trouble = _Trouble()
        while True:
            try:
                result = await self._tree.settle(call)
                break
            except Unavailable as problem:  # a node or a session starts again, for instance
                if trouble.lasted_s > self._unavailable_for_s:
                    _log.warning("event=not_settled step=%s %s", call.intent.step, fields(message=problem))
                    return None
                await asyncio.sleep(trouble.pause(problem))
        if result is None:
            return None
        intent = call.intent
        return msgspec.structs.replace(result, turn=intent.turn, step=intent.step, concealed=intent.concealed)

    def cancel_tasks_below(self, loaded: LoadedConversation, events: Sequence[AnyEvent]) -> None:
        """Cancels, in the background, the tasks of other agents that agents had waited for who are deleted by
        these events. What is missed is cancelled at the end of the turn."""
        deleted = [e.place for e in events if isinstance(e, NodeCompleted) and e.status == "deleted"]
        if not deleted:
            return
        abandoned = [
            task
            for task in _abandoned_tasks(loaded)
            if any(place.contains(Place(task.node)) for place in deleted)
        ]
        if abandoned:
            calling_off = asyncio.create_task(self._cancel_tasks(abandoned))
            self._calling_off.add(calling_off)
            calling_off.add_done_callback(self._calling_off.discard)

    async def _cancel_tasks(self, abandoned: Sequence[AbandonedTask]) -> None:
        """Cancels the tasks that other agents work on for a turn that is over. Their approvals could still be
        decided there, and would then do what nobody waits for any more."""
        await asyncio.gather(*(self._cancel_task(task) for task in abandoned))

    async def _cancel_task(self, task: AbandonedTask) -> None:
        try:
            async with asyncio.timeout(_CANCEL_WITHIN_S):
                await self._tree.cancel(task)
        except Exception as problem:  # noqa: BLE001 - the turn is over in any case
            about = fields(agent=task.agent, task=task.task_id, message=problem)
            _log.warning("event=not_called_off %s", about)

    async def _output(self, loaded: LoadedConversation, turn: PassInput, root: RunningNode) -> PassOutput:
        """Runs a pass and returns its output. A defect of a node ends the turn: another pass would meet it
        again."""
        loaded.running_pass = asyncio.create_task(root.run())
        try:
            async with asyncio.timeout(self._turn_timeout_s):
                return await loaded.running_pass
        except asyncio.CancelledError:
            # The pass may be cancelled because the turn ends. If the driver is, the keeper ends, and nothing
            # follows.
            driver = asyncio.current_task()
            if loaded.ends_now and not (driver and driver.cancelling()):
                raise EndsNow from None
            if not (driver and driver.cancelling()):
                raise Unavailable("the pass was cancelled") from None
            raise
        except TimeoutError:
            limit = f"{self._turn_timeout_s:g} s (limits.turn_timeout_s)"
            return PassOutput("failed", f"the turn took longer than {limit}")
        except (Unavailable, JournalError):
            raise
        except Exception as problem:  # noqa: BLE001 - it fails the turn, and the log has its traceback
            _log.exception("event=pass_failed conversation=%s turn=%d", turn.conversation_id, turn.turn)
            return PassOutput("failed", f"internal error: {problem}; the log has more")
        finally:
            loaded.running_pass = None


def _abandoned_tasks(loaded: LoadedConversation) -> list[AbandonedTask]:
    """The tasks of other agents that wait for an answer in the open turn."""
    conversation = loaded.conversation
    return [
        AbandonedTask(
            conversation.digest,
            asked.node,
            asked.remote_agent_name,
            asked.remote_task_id,
            conversation.turn_session_id,
            conversation.traceparent,
            loaded.token,
        )
        for asked in conversation.remote_approvals
    ]


def _unsettled(loaded: LoadedConversation) -> list[UnsettledCall]:
    """The claimed calls of the open turn whose outcome is not known."""
    conversation = loaded.conversation
    return [
        UnsettledCall(
            conversation.digest,
            conversation.id,
            call.id if call else "",
            intent,
            conversation.depth,
            conversation.traceparent,
        )
        for intent, call in conversation.unsettled
    ]


def _cancelled(turn: int) -> Completed:
    return Completed(turn=turn, response=STOPPED_BY_PERSON, stopped_by_person=True, cancelled_on_request=True)


def _end(output: PassOutput, turn: PassInput, loaded: LoadedConversation) -> Sequence[AnyEvent]:
    """What a pass adds to the journal after its events. Where the root agent is deleted, or an agent returned
    to the user, in the journal or among the events, the driver ends the turn by that."""
    returned = (event for event in output.events if isinstance(event, ToolResult) and event.ends_turn)
    if loaded.conversation.returned or loaded.conversation.is_stopped or any(returned):
        return ()
    if output.status == "completed" and loaded.has_news_for_root(output.events):
        return ()  # another pass follows, in which the root is asked once more, or waits
    match output.status:
        case "completed" | "stopped":
            is_stopped = output.status == "stopped"
            end = Completed(
                turn=turn.turn,
                response=output.text,
                stopped_by_person=is_stopped,
                state={} if is_stopped else dict(output.state),
                forced=output.forced,
                output=output.output,
                invalid=output.invalid,
            )
            return [end]
        case "failed":
            return [Error(turn=turn.turn, message=output.text)]
        case "paused":
            return [Paused(turn=turn.turn, run=turn.run)]
        case _:
            return ()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Takes the exception of a driver, which may fail with nobody waiting for it: it has logged the failure
    itself, and asyncio would report it once more."""
    if not task.cancelled():
        task.exception()
