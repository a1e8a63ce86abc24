"""The keeper: starts turns, runs passes over the tree, takes decisions, recovers after a crash.

Above: a gateway, which sends `Request`s and passes the replies on. Below: a `Journal`, and `RunTurn`,
a way to run one pass over an agent's tree. A keeper knows neither HTTP nor Ray, nor what nodes do.

A turn belongs to the keeper, not to the request that started it: requests wait for a *driver*, the
one task that runs passes until the turn ends or waits for a person. A request that goes away
leaves the driver running; a keeper that starts makes a driver for every turn that was left open.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from mesh.conversation import Conversation, fold, view
from mesh.errors import (
    BadRequest,
    Conflict,
    JournalDamaged,
    JournalError,
    NotFound,
    RequestError,
    StaleEpoch,
    Unavailable,
    WrongSequence,
)
from mesh.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    UserMessage,
    now,
)
from mesh.failpoints import failpoint
from mesh.ids import is_id, shard_of
from mesh.journal.port import Journal
from mesh.keeper.answer import answer, decided, page, rewound
from mesh.keeper.cell import Cell
from mesh.keeper.index import Index
from mesh.keeper.requests import (
    Caller,
    Create,
    Decide,
    Finish,
    Page,
    Reply,
    Request,
    Say,
    Show,
    refusal,
    reply,
)
from mesh.keeper.snapshots import Snapshots
from mesh.tree.turn import RunTurn, TurnOutput

_log = logging.getLogger("mesh.keeper")

WORDS_FOR = {"tool_call": ("approve", "reject"), "unknown_outcome": ("retry", "skip")}


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper needs to know of the agent, and its bounds (times in seconds)."""

    agent: str
    digest: str
    system_prompt: str = ""
    turn_timeout_s: float = 3600.0
    unavailable_for_s: float = 120.0
    max_queue_per_conversation: int = 100
    max_loaded: int = 5_000
    max_recovering: int = 256


class Keeper:
    """Owner of shard ``shard`` of ``shards``. `start` before anything else."""

    def __init__(
        self,
        shard: int,
        shards: int,
        journal: Journal,
        run_turn: RunTurn,
        settings: KeeperSettings,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        self._shard = shard
        self._shards = shards
        self._journal = journal
        self._run_turn = run_turn
        self._settings = settings
        self._on_fenced = on_fenced
        self._epoch = 0
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Cell]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._index = Index()
        self._snapshots = Snapshots(journal, f"index_{shard}.json", self._index)

    async def start(self) -> None:
        """Takes the shard over and goes on with every turn that was left open."""
        self._epoch = await self._journal.open(self._shard)
        await self._load_index()
        recovering = asyncio.Semaphore(self._settings.max_recovering)
        for conversation_id in list(self._index.open_turns()):
            self._background(self._recover(conversation_id, recovering))

    async def close(self) -> None:
        """Stops driving turns (they stay open) and writes what is only derived."""
        drivers = [cell.driver for cell in self._cells.values() if cell.driver]
        tasks = [*self._tasks, *drivers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._snapshots.close()

    async def handle(self, request: Request) -> Reply:
        """Answers any request; what is wrong becomes a reply too."""
        try:
            return await self._dispatch(request)
        except RequestError as problem:
            return refusal(problem.status, str(problem))
        except Unavailable as problem:
            return refusal(problem.status, str(problem), retry_after_s=problem.retry_after_s)
        except JournalDamaged as problem:
            return refusal(500, str(problem))
        except JournalError as problem:
            return refusal(503, str(problem), retry_after_s=1)

    async def append_ahead(
        self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]
    ) -> bool:
        """`AppendAhead` for the nodes. Raises `JournalError` when the events are not durable."""
        cell = await self._cell(conversation_id)
        accepted = await cell.append_of_run(turn, run, events)
        if not accepted and cell.needs_pass:
            self._drive(cell)
        return accepted

    async def _dispatch(self, request: Request) -> Reply:
        match request:
            case Create():
                return await self._create(request)
            case Say():
                return await self._say(request)
            case Decide():
                return await self._decide(request)
            case Finish():
                return await self._finish(request)
            case Show():
                cell = await self._cell(request.id)
                return reply(200, {"conversation": view(cell.conversation)}, cell.conversation.session_id)
            case Page():
                return page(self._index, request)

    async def _create(self, request: Create) -> Reply:
        caller = request.caller
        if request.id in self._index:
            cell = await self._cell(request.id)
            if not self._is_repeated(cell, caller):
                raise Conflict(f"conversation {request.id} exists already")
        else:
            cell = await self._new_cell(request)
        if request.message is None:
            return answer(cell.conversation, 201, with_result=False)
        keyed = msgspec.structs.replace(
            caller, idempotency_key=caller.idempotency_key and f"{caller.idempotency_key}/1"
        )
        said = await self._say(Say(request.id, keyed, request.message, request.wait))
        return msgspec.structs.replace(said, status=201) if said.status == 200 else said

    async def _new_cell(self, request: Create) -> Cell:
        caller, settings = request.caller, self._settings
        self._forget_idle()
        cell = self._cells.setdefault(request.id, self._make_cell(Conversation()))
        created = ConversationCreated(
            conversation_id=request.id,
            session_id=caller.session_id,
            agent=settings.agent,
            digest=settings.digest,
            system_prompt=settings.system_prompt,
            idempotency_key=caller.idempotency_key,
            body_hash=caller.body_hash,
        )
        await cell.append([created])
        return cell

    async def _say(self, request: Say) -> Reply:
        cell = await self._cell(request.id)
        if cell.queued >= self._settings.max_queue_per_conversation:
            raise Unavailable(f"conversation {request.id}: {cell.queued} messages wait already", 1, 429)
        cell.queued += 1
        try:
            async with cell.turns:
                return await self._say_in_turn(cell, request)
        finally:
            cell.queued -= 1

    async def _say_in_turn(self, cell: Cell, request: Say) -> Reply:
        caller, conversation = request.caller, cell.conversation
        if self._is_repeated(cell, caller):
            return await self._first_answer(cell, caller.idempotency_key)
        while cell.needs_pass:
            await self._driven(cell)
        if conversation.finished:
            raise Conflict(f"conversation {conversation.id} is completed; start a new one")
        if conversation.pending:
            return answer(conversation, 200)
        self._adopt(cell, caller)
        cell.hold(
            UserMessage(
                time=now(),
                turn=conversation.turn + 1,
                text=request.message,
                session_id=caller.session_id if caller.session_id != conversation.session_id else "",
                idempotency_key=caller.idempotency_key,
                body_hash=caller.body_hash,
            )
        )
        return await self._outcome(cell, request.wait)

    async def _decide(self, request: Decide) -> Reply:
        cell, asked = await self._asked(request.uuid)
        conversation, caller = cell.conversation, request.caller
        if self._is_repeated(cell, caller):
            return await self._first_answer(cell, caller.idempotency_key)
        if asked is None:
            raise Conflict(decided(conversation, request.uuid))
        words = WORDS_FOR[asked.kind]
        if request.decision not in words:
            raise BadRequest(
                f"approval {asked.uuid} takes {' or '.join(words)}, not {request.decision}: "
                f"{asked.description}"
            )
        resolved = ApprovalResolved(
            turn=asked.turn,
            step=asked.step,
            uuid=asked.uuid,
            decision=request.decision,
            by=caller.by,
            idempotency_key=caller.idempotency_key,
            body_hash=caller.body_hash,
        )
        won = await cell.append([resolved], only_if=lambda: asked in conversation.pending)
        if not won:
            raise Conflict(decided(conversation, request.uuid))
        failpoint("approval.resolved")
        self._adopt(cell, caller)
        return await self._outcome(cell, request.wait)

    async def _finish(self, request: Finish) -> Reply:
        cell = await self._cell(request.id)
        async with cell.turns:
            while cell.needs_pass:
                await self._driven(cell)
            conversation = cell.conversation
            if conversation.pending:
                raise Conflict(
                    f"conversation {request.id} waits for approval {conversation.pending[0].uuid}; "
                    f"decide it first"
                )
            if not conversation.finished:
                await cell.append([ConversationCompleted(turn=conversation.turn)])
            return reply(200, {"conversation": view(conversation)}, conversation.session_id)

    async def _outcome(self, cell: Cell, wait: bool) -> Reply:
        """The answer of the turn under way, or the promise of one once its message is durable."""
        driver = self._drive(cell)
        if wait:
            await asyncio.shield(driver)
            return answer(cell.conversation, 200)
        await cell.append(())
        conversation = cell.conversation
        body = {"conversation": view(conversation)}
        return reply(202, body, conversation.session_id, location=f"/conversations/{conversation.id}")

    def _adopt(self, cell: Cell, caller: Caller) -> None:
        """The turn acts for this caller from now on."""
        cell.token = caller.token or cell.token
        cell.traceparent = caller.traceparent or cell.traceparent

    # -- idempotency

    def _is_repeated(self, cell: Cell, caller: Caller) -> bool:
        """Whether this request was taken before. Raises `Conflict` if the key had another body."""
        taken = cell.conversation.requests.get(caller.idempotency_key) if caller.idempotency_key else None
        if taken is None:
            return False
        if taken.body_hash != caller.body_hash:
            raise Conflict(
                f"Idempotency-Key {caller.idempotency_key.removesuffix('/1')!r} was used with another body"
            )
        return True

    async def _first_answer(self, cell: Cell, key: str) -> Reply:
        while cell.needs_pass and not cell.conversation.answered_at(key):
            await self._driven(cell)
        seq = cell.conversation.answered_at(key)
        return answer(rewound(await self._journal.read(cell.conversation.id), seq), 200)

    # -- driving turns

    def _drive(self, cell: Cell) -> asyncio.Task[None]:
        """The driver of the open turn; there is one at most."""
        if cell.driver is None or cell.driver.done():
            cell.driver = asyncio.create_task(self._passes(cell))
            cell.driver.add_done_callback(_retrieve)
        return cell.driver

    async def _driven(self, cell: Cell) -> None:
        await asyncio.shield(self._drive(cell))

    async def _passes(self, cell: Cell) -> None:
        """Runs passes until the turn is over or waits for a person.

        A pass that nobody took to its end is followed by another: what the lost one learned and
        claimed is in the journal, and it can neither claim nor record any more.
        """
        trouble_since = None
        while cell.needs_pass:
            try:
                await self._pass(cell)
                trouble_since = None
            except Unavailable as problem:
                trouble_since = trouble_since or time.monotonic()
                _log.warning("event=pass_lost conversation=%s message=%r", cell.conversation.id, str(problem))
                if time.monotonic() - trouble_since > self._settings.unavailable_for_s:
                    await cell.append(
                        [Error(turn=cell.conversation.turn, message=f"no node could run the turn: {problem}")]
                    )
                await asyncio.sleep(problem.retry_after_s * random.uniform(0.5, 1))
        if not cell.conversation.turn_open:
            cell.token = ""

    async def _pass(self, cell: Cell) -> None:
        turn = cell.begin_pass()
        try:
            async with asyncio.timeout(self._settings.turn_timeout_s):
                output = await self._run_turn(turn)
        except TimeoutError:
            limit = self._settings.turn_timeout_s
            output = TurnOutput("failed", f"the turn took longer than {limit:g} s (limits.turn_timeout_s)")
        failpoint("keeper.pass_returned")
        if output.status == "interrupted":
            raise Unavailable(output.text)
        await cell.append_of_run(turn.turn, turn.run, _closing(output, turn.turn))

    async def _recover(self, conversation_id: str, recovering: asyncio.Semaphore) -> None:
        async with recovering:
            try:
                cell = await self._cell(conversation_id)
                _log.info(
                    "event=recover sid=%s conversation=%s", cell.conversation.session_id, conversation_id
                )
                if cell.needs_pass:
                    await self._driven(cell)
            except (JournalError, NotFound) as problem:
                _log.error("event=recover_failed conversation=%s message=%r", conversation_id, str(problem))

    # -- finding conversations

    async def _cell(self, conversation_id: str) -> Cell:
        """The cell of a conversation, read from its journal if need be."""
        cell = self._cells.get(conversation_id)
        if cell is not None and cell.conversation.seq:
            self._cells.move_to_end(conversation_id)
            return cell
        if not is_id(conversation_id) or shard_of(conversation_id, self._shards) != self._shard:
            raise NotFound(f"there is no conversation {conversation_id[:64]!r}")
        if conversation_id not in self._loading:
            task = asyncio.create_task(self._load(conversation_id))
            task.add_done_callback(lambda _: self._loading.pop(conversation_id, None))
            self._loading[conversation_id] = task
        return await asyncio.shield(self._loading[conversation_id])

    async def _load(self, conversation_id: str) -> Cell:
        conversation = fold(await self._journal.read(conversation_id))
        if not conversation.id:
            raise NotFound(f"there is no conversation {conversation_id}")
        self._forget_idle()
        return self._cells.setdefault(conversation_id, self._make_cell(conversation))

    def _make_cell(self, conversation: Conversation) -> Cell:
        return Cell(conversation, self._journal, self._shard, self._epoch, self._changed, self._lost)

    def _changed(self, cell: Cell, size: int) -> None:
        self._index.put(cell.conversation, size)
        self._snapshots.mark(cell.conversation)

    def _forget_idle(self) -> None:
        """Bounds memory: the least used cells that nobody needs go; their journals stay."""
        excess = len(self._cells) - self._settings.max_loaded
        if excess > 0:
            idle = [i for i, cell in self._cells.items() if cell.is_idle]
            for conversation_id in idle[:excess]:
                del self._cells[conversation_id]

    async def _asked(self, uuid: str) -> tuple[Cell, ApprovalRequired | None]:
        """The conversation of an approval, and the approval if it still waits."""
        for conversation_id in self._index.with_tail(uuid):
            cell = await self._cell(conversation_id)
            for asked in cell.conversation.pending:
                if asked.uuid == uuid:
                    return cell, asked
            if uuid in cell.conversation.asked:
                return cell, None
        raise NotFound(f"there is no approval {uuid[:64]!r}")

    async def _load_index(self) -> None:
        sizes = await self._journal.sizes()
        mine = {i: size for i, size in sizes.items() if is_id(i) and shard_of(i, self._shards) == self._shard}
        await self._snapshots.load_index(mine)
        for conversation_id, size in mine.items():
            if not self._index.is_current(conversation_id, size):
                try:
                    conversation = fold(await self._journal.read(conversation_id))
                except JournalDamaged as problem:
                    _log.error(
                        "event=journal_damaged conversation=%s message=%r", conversation_id, str(problem)
                    )
                    continue
                if conversation.id:
                    self._index.put(conversation, size)

    # -- trouble

    def _lost(self, cell: Cell, problem: JournalError) -> None:
        """What is in memory may not be what is in the journal: read it again, or leave the shard."""
        _log.error("event=journal_error conversation=%s message=%r", cell.conversation.id, str(problem))
        if isinstance(problem, StaleEpoch):
            self._on_fenced()
        if isinstance(problem, WrongSequence):
            self._cells.pop(cell.conversation.id, None)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _closing(output: TurnOutput, turn: int) -> list[AnyEvent]:
    """What a pass brings to the journal."""
    events = list(output.events)
    match output.status:
        case "completed" | "cancelled":
            events.append(Completed(turn=turn, response=output.text, cancelled=output.status == "cancelled"))
        case "failed":
            events.append(Error(turn=turn, message=output.text))
        case _:
            pass
    return events


def _retrieve(task: asyncio.Task[None]) -> None:
    """A driver may fail with nobody waiting for it; what failed was logged by the driver."""
    if not task.cancelled():
        task.exception()
