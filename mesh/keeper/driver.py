"""Drives turns: one task a conversation, which runs passes until the turn ends or waits for a person.

A turn belongs to its driver, not to the request that started it: requests wait for the driver, and
one that goes away leaves it running.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from mesh.core.errors import JournalError, StaleEpoch, Unavailable, WrongSequence
from mesh.core.events import AnyEvent, Completed, Error, Paused, ToolResult
from mesh.keeper.cell import Cell
from mesh.net.backoff import Backoff, Patience, jittered
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields
from mesh.tree.node import CANCELLED
from mesh.tree.turn import AbandonedTask, Tree, TurnInput, TurnOutput, UnsettledCall

_log = logging.getLogger("mesh.keeper")
_CANCEL_WITHIN_S = 5.0
LOST_PASSES = Backoff(first_s=0.1, longest_s=10.0)


class Cancelled(Exception):
    """Somebody wants the turn to end. Unwinds the pass; never leaves the driver."""


class _Trouble:
    """Passes that are lost in a row: since when, why the last one was, and when to try again."""

    def __init__(self) -> None:
        self.problem = ""
        self._patience = Patience(LOST_PASSES)

    @property
    def lasted_s(self) -> float:
        return self._patience.lasted_s

    def pause(self, problem: Unavailable | JournalError) -> float:
        """How many seconds to wait after this problem."""
        self.problem = str(problem)
        if isinstance(problem, Unavailable):
            return jittered(problem.retry_after_s)  # our own actors: they are back sooner than they say
        return self._patience.next_delay()


class Driver:
    """``turn_timeout_s`` bounds a pass, ``unavailable_for_s`` how long passes may be lost in a row."""

    def __init__(self, tree: Tree, turn_timeout_s: float, unavailable_for_s: float) -> None:
        self._tree = tree
        self._turn_timeout_s = turn_timeout_s
        self._unavailable_for_s = unavailable_for_s

    def start(self, cell: Cell) -> asyncio.Task[None]:
        """The task that drives the open turn; there is one at most."""
        if cell.driver is None or cell.driver.done():
            cell.driver = asyncio.create_task(self._passes(cell))
            cell.driver.add_done_callback(_retrieve)
        return cell.driver

    async def finish(self, cell: Cell) -> None:
        """Returns when the open turn is over or waits for a person."""
        while cell.needs_pass:
            await asyncio.shield(self.start(cell))

    async def cancel(self, cell: Cell) -> None:
        """Ends the open turn: no new step of it starts; a tool that must not run twice, and runs, is
        waited for."""
        turn = cell.cancelled = cell.turn
        abandoned: list[AbandonedTask] = []
        try:
            if cell.work is not None:
                cell.work.cancel()
            while cell.needs_pass and cell.turn == turn:
                await asyncio.shield(self.start(cell))
            abandoned = _abandoned_tasks(cell)
            await self._append_cancelled(cell, turn)
        finally:
            cell.cancelled = 0
        await self._cancel_tasks(abandoned)

    async def _passes(self, cell: Cell) -> None:
        """A pass that nobody took to its end is followed by another: what the lost one learned and
        claimed is in the journal, and it can neither claim nor record any more. Trouble with the journal is
        waited out as well, until the turn's own deadline."""
        trouble: _Trouble | None = None
        while cell.needs_pass:
            try:
                await self._pass_or_end(cell, trouble)
                trouble = None
            except (Unavailable, JournalError) as problem:
                if isinstance(problem, StaleEpoch | WrongSequence):
                    raise  # this cell is not the conversation any more: the shard, or the cell, is given up
                if cell.is_failing and await cell.drop_held():
                    raise  # nothing of the turn is durable: whoever sent its message is told so
                _log.warning("event=pass_lost %s %s", cell.about, fields(message=problem))
                trouble = trouble or _Trouble()
                await asyncio.sleep(trouble.pause(problem))

    async def _pass_or_end(self, cell: Cell, trouble: "_Trouble | None") -> None:
        """The next pass; or the turn's end, if somebody wants it, or trouble has lasted for too long."""
        longest = self._turn_timeout_s if cell.is_failing else self._unavailable_for_s
        if trouble is not None and trouble.lasted_s > longest:
            message = f"no node could run the turn: {trouble.problem}"
            results = await self._settled(cell)
            await cell.append([*results, Error(turn=cell.turn, message=message)])
            return
        try:
            await self._pass(cell)
        except Cancelled:
            abandoned = _abandoned_tasks(cell)
            await self._append_cancelled(cell, cell.turn)
            await self._cancel_tasks(abandoned)

    async def _pass(self, cell: Cell) -> None:
        if cell.cancelled == cell.turn:
            raise Cancelled
        turn = await cell.begin_pass()
        output = await self._output(cell, turn)
        failpoint("keeper.pass_returned")
        abandoned = _abandoned_tasks(cell)
        await cell.append_of_run(turn.turn, turn.run, _closing(output, turn))
        if not cell.conversation.turn_open:
            await self._cancel_tasks(abandoned)
        if output.status == "interrupted":
            raise Unavailable(output.text)
        if output.status == "superseded" and cell.is_current(turn.turn, turn.run):
            # By no other pass: the next one begins after a pause, so that nothing goes round and round.
            raise Unavailable("a pass ended as if another one had begun")

    async def _append_cancelled(self, cell: Cell, turn: int) -> None:
        """Ends the turn, with what came of the calls that were claimed in it: one that runs is waited for."""
        results = await self._settled(cell)
        await cell.append([*results, _cancelled(turn)], only_if=lambda: cell.is_open(turn))

    async def _settled(self, cell: Cell) -> list[ToolResult]:
        settled = await asyncio.gather(*(self._settle(call) for call in _unsettled(cell)))
        return [result for result in settled if result is not None]

    async def _settle(self, call: UnsettledCall) -> ToolResult | None:
        trouble = _Trouble()
        while True:
            try:
                result = await self._tree.settle(call)
                break
            except Unavailable as problem:  # of a node or a session that starts again, say
                if trouble.lasted_s > self._unavailable_for_s:
                    _log.warning("event=not_settled step=%s %s", call.intent.step, fields(message=problem))
                    return None
                await asyncio.sleep(trouble.pause(problem))
        if result is None:
            return None
        return msgspec.structs.replace(result, turn=call.intent.turn, step=call.intent.step)

    async def _cancel_tasks(self, abandoned: Sequence[AbandonedTask]) -> None:
        """Nobody will answer what other agents ask for a turn that is over: they are told so, as well as that
        can be. A decision there would do what nobody wants any more."""
        await asyncio.gather(*(self._cancel_task(task) for task in abandoned))

    async def _cancel_task(self, task: AbandonedTask) -> None:
        try:
            async with asyncio.timeout(_CANCEL_WITHIN_S):
                await self._tree.cancel(task)
        except Exception as problem:  # noqa: BLE001 - the turn is over, whatever comes of it
            about = fields(agent=task.agent, task=task.task_id, message=problem)
            _log.warning("event=not_called_off %s", about)

    async def _output(self, cell: Cell, turn: TurnInput) -> TurnOutput:
        """How the pass ended. A bug in a node ends the turn: another pass would meet it again."""
        cell.work = asyncio.create_task(self._tree.run(turn))
        try:
            async with asyncio.timeout(self._turn_timeout_s):
                return await cell.work
        except asyncio.CancelledError:
            if cell.cancelled == turn.turn:
                raise Cancelled from None
            raise
        except TimeoutError:
            limit = f"{self._turn_timeout_s:g} s (limits.turn_timeout_s)"
            return TurnOutput("failed", f"the turn took longer than {limit}")
        except (Unavailable, JournalError):
            raise
        except Exception as problem:  # noqa: BLE001 - told to the person and to the log
            _log.exception("event=pass_failed conversation=%s turn=%d", turn.conversation_id, turn.turn)
            return TurnOutput("failed", f"internal error: {problem}; the log has more")
        finally:
            cell.work = None


def _abandoned_tasks(cell: Cell) -> list[AbandonedTask]:
    """What other agents wait for in the open turn."""
    conversation = cell.conversation
    return [
        AbandonedTask(
            conversation.digest,
            asked.node,
            asked.remote_agent_name,
            asked.remote_task_id,
            conversation.turn_session_id,
            cell.traceparent,
            cell.token,
        )
        for asked in conversation.remote_approvals
    ]


def _unsettled(cell: Cell) -> list[UnsettledCall]:
    """The calls of the open turn of which nobody has heard."""
    conversation = cell.conversation
    return [
        UnsettledCall(conversation.digest, conversation.id, call.id if call else "", intent)
        for intent, call in conversation.unsettled
    ]


def _cancelled(turn: int) -> Completed:
    return Completed(turn=turn, response=CANCELLED, stopped_by_person=True, cancelled_on_request=True)


def _closing(output: TurnOutput, turn: TurnInput) -> Sequence[AnyEvent]:
    """What a pass brings to the journal."""
    events = list(output.events)
    match output.status:
        case "completed" | "cancelled":
            cancelled = output.status == "cancelled"
            state = {} if cancelled else dict(output.state)
            events.append(
                Completed(turn=turn.turn, response=output.text, stopped_by_person=cancelled, state=state)
            )
        case "failed":
            events.append(Error(turn=turn.turn, message=output.text))
        case "paused":
            events.append(Paused(turn=turn.turn, run=turn.run))
        case _:
            pass
    return events


def _retrieve(task: asyncio.Task[None]) -> None:
    """A driver may fail with nobody waiting for it; what failed was logged by the driver."""
    if not task.cancelled():
        task.exception()
