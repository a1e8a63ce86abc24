"""Drives turns: one task a conversation, which runs passes until the turn ends or waits for a person.

A turn belongs to its driver, not to the request that started it: requests wait for the driver, and
one that goes away leaves it running.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from mesh.errors import JournalError, Unavailable
from mesh.events import AnyEvent, Completed, Error, Paused
from mesh.failpoints import failpoint
from mesh.keeper.cell import Cell
from mesh.tree.node import CANCELLED
from mesh.tree.turn import LeftOver, Tree, TurnInput, TurnOutput

_log = logging.getLogger("mesh.keeper")
_GOODBYE_S = 5.0


class Cancelled(Exception):
    """Somebody wants the turn to end. Unwinds the pass; never leaves the driver."""


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
        left_over: list[LeftOver] = []
        try:
            if cell.work is not None:
                cell.work.cancel()
            while cell.needs_pass and cell.turn == turn:
                await asyncio.shield(self.start(cell))
            left_over = _left_over(cell)
            await cell.append([_cancelled(turn)], only_if=lambda: cell.is_open(turn))
        finally:
            cell.cancelled = 0
        await self._call_off(left_over)

    async def _passes(self, cell: Cell) -> None:
        """A pass that nobody took to its end is followed by another: what the lost one learned and
        claimed is in the journal, and it can neither claim nor record any more."""
        trouble_since = None
        while cell.needs_pass:
            try:
                await self._pass(cell)
                trouble_since = None
            except Cancelled:
                left_over = _left_over(cell)
                await cell.append([_cancelled(cell.turn)])
                await self._call_off(left_over)
            except Unavailable as problem:
                trouble_since = trouble_since or time.monotonic()
                _log.warning("event=pass_lost %s message=%r", cell.about, str(problem))
                if time.monotonic() - trouble_since > self._unavailable_for_s:
                    message = f"no node could run the turn: {problem}"
                    await cell.append([Error(turn=cell.conversation.turn, message=message)])
                await asyncio.sleep(problem.retry_after_s * random.uniform(0.5, 1))

    async def _pass(self, cell: Cell) -> None:
        if cell.cancelled == cell.turn:
            raise Cancelled
        turn = await cell.begin_pass()
        output = await self._output(cell, turn)
        failpoint("keeper.pass_returned")
        left_over = _left_over(cell)
        await cell.append_of_run(turn.turn, turn.run, _closing(output, turn))
        if not cell.conversation.turn_open:
            await self._call_off(left_over)
        if output.status == "interrupted":
            raise Unavailable(output.text)

    async def _call_off(self, left_over: Sequence[LeftOver]) -> None:
        """Nobody will answer what other agents ask for a turn that is over: they are told so, as well as that
        can be. A decision there would do what nobody wants any more."""
        await asyncio.gather(*(self._say_goodbye(task) for task in left_over))

    async def _say_goodbye(self, task: LeftOver) -> None:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._tree.call_off(task)
        except Exception as problem:  # noqa: BLE001 - the turn is over, whatever comes of it
            _log.warning("event=not_called_off %s message=%r", task, str(problem))

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


def _left_over(cell: Cell) -> list[LeftOver]:
    """What other agents wait for in the open turn."""
    conversation = cell.conversation
    return [
        LeftOver(
            conversation.digest,
            asked.node,
            asked.remote_agent_name,
            asked.remote_task_id,
            conversation.session_id,
            cell.traceparent,
            cell.token,
        )
        for asked in conversation.asked_elsewhere
    ]


def _cancelled(turn: int) -> Completed:
    return Completed(turn=turn, response=CANCELLED, cancelled=True, called_off=True)


def _closing(output: TurnOutput, turn: TurnInput) -> Sequence[AnyEvent]:
    """What a pass brings to the journal."""
    events = list(output.events)
    match output.status:
        case "completed" | "cancelled":
            cancelled = output.status == "cancelled"
            state = {} if cancelled else dict(output.state)
            events.append(Completed(turn=turn.turn, response=output.text, cancelled=cancelled, state=state))
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
