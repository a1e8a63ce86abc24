"""Runs turns between a mesh and a terminal.

    message ─► sent ─► events are printed ─► answered | failed | cancelled ─► next message
                         ▲               └─► paused ─► each approval is decided ─┐
                         └───────────────────────────────────────────────────────┘

While events are printed, a person can type: commands for the turn that runs are run at once, and every other
line waits in `Chat._next` until the turn has ended.

The event stream is opened before the message is sent, so that no event of the turn is missed. It begins after
the last event that was printed, so that events of other clients are printed first. Ctrl-C (`Chat.interrupt`)
asks the mesh to cancel the turn; a second Ctrl-C stops waiting for that.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from enum import IntEnum
from functools import partial

from mesh.chat.card import place_of
from mesh.chat.commands import QuitRequested, is_for_running_turn, run_command
from mesh.chat.terminal import CancelRequested, InputEnded, Terminal
from mesh.chat.transcript import Notice, Transcript
from mesh.client.conversation_ids import conversation_id as whole_id
from mesh.client.rest import Connected, Disconnected, MeshClient, RequestRefused, new_key
from mesh.core.approvals import Decision, kind_of
from mesh.core.errors import MeshError
from mesh.core.events import ApprovalRequired, Spend
from mesh.core.places import ROOT
from mesh.display.approvals import asker_of
from mesh.display.text import clean
from mesh.journal.portable import read_lines

Begin = Callable[[], Awaitable[None]]

_TURNS_SHOWN = 3
_MAX_DESCRIPTION = 1_000
_DECIDED_ELSEWHERE = (404, 409)
_MOST_WAITING = 20
_LEAVES = "/quit"


class ExitStatus(IntEnum):
    """How a chat or one of its turns ended, as the exit status of the process."""

    ANSWERED = 0
    FAILED = 1
    WAITS = 3
    INTERRUPTED = 130


class Chat:
    """The chat of one user with one mesh.

    ``names`` are the names of the tree's nodes by node path. ``resume_prefix`` is the command that continues
    a conversation, without its id. With ``yes`` every tool call is approved without asking.
    """

    def __init__(
        self,
        client: MeshClient,
        terminal: Terminal,
        names: dict[str, str],
        resume_prefix: str,
        *,
        yes: bool = False,
    ) -> None:
        self.client = client
        self.conversation_id = ""
        self._terminal = terminal
        self._names = names
        self._resume_prefix = resume_prefix
        self._yes = yes
        self._transcript = Transcript(names)
        self._decided: set[str] = set()
        self._turn: asyncio.Task[ExitStatus] | None = None
        self._is_sent = asyncio.Event()
        self._cancelling: asyncio.Task[None] | None = None
        self._next: deque[str] = deque()  # lines that wait for the end of the turn
        self._draft = ""

    async def talk(self, conversation_id: str = "") -> None:
        """Takes messages and commands until there are no more, in the given conversation or in a new one."""
        try:
            if conversation_id:
                await self.resume(conversation_id)
            while True:
                await self._handle(await self._next_line())
        except (InputEnded, QuitRequested):
            return

    async def _next_line(self) -> str:
        if self._next:
            line = self._next.popleft()
            self.notify(Notice(f"› {clean(line)}", "plain"))
            return line
        draft, self._draft = self._draft, ""
        return await self._terminal.message(draft)

    async def _handle(self, line: str) -> None:
        try:
            if line.startswith("/"):
                await run_command(self, line)
            else:
                await self.turn(line.strip())
        except MeshError as problem:
            self.notify(_error(problem))

    async def answer_all(self) -> ExitStatus | None:
        """Takes messages until there are no more or one was not answered. Returns None if there were none."""
        status = None
        while status in (None, ExitStatus.ANSWERED):
            try:
                status = await self.turn(await self._terminal.message())
            except InputEnded:
                break
        return status

    def notify(self, *notes: Notice) -> None:
        self._terminal.show(notes)

    async def watch(self) -> None:
        """Shows the agents of this conversation, live."""
        await self._terminal.watch(self.client, self.conversation_id)

    @property
    def resume_command(self) -> str:
        """The command that continues this conversation. It is empty before the first message."""
        return f"{self._resume_prefix} {clean(self.conversation_id)}" if self.conversation_id else ""

    def new(self) -> None:
        """Makes the next message begin a new conversation."""
        self.conversation_id = ""
        self._transcript = Transcript(self._names)

    async def resume(self, conversation_id: str) -> ExitStatus:
        """Continues the conversation whose id this is, or begins so: shows its last turns, and runs an open
        turn to its end."""
        conversation_id = await whole_id(self.client, conversation_id, "this mesh")
        events, _ = read_lines((await self.client.log(conversation_id)).splitlines())
        self.new()
        self.conversation_id = conversation_id
        first = (events[-1].turn if events else 0) - _TURNS_SHOWN
        for event in events:
            parts = self._transcript.see(event)
            if event.turn > first:
                self._terminal.recall(parts)
        await self._recall_spend()
        self.notify(Notice(f"conversation {clean(conversation_id)}"))
        if self._transcript.is_open:
            return await self._interruptible(self._run_to_end())
        return ExitStatus.ANSWERED

    async def _recall_spend(self) -> None:
        """Shows what the newest turn has used of its limits: the journal does not tell it."""
        turn = (await self.client.spend(self.conversation_id)).turn
        if turn is not None and turn.number == self._transcript.turn:
            spend = Spend(
                turn=turn.number,
                step=ROOT.text,
                limits=turn.limits,
                spent=turn.spent,
                unsettled=turn.unsettled,
                reserved=turn.reserved,
            )
            self._terminal.recall(self._transcript.see(spend))

    async def turn(self, message: str) -> ExitStatus:
        """Sends a message and runs its turn to the end."""
        return await self._interruptible(self._send(message.encode(errors="replace").decode()))

    def interrupt(self) -> bool:
        """Handles Ctrl-C: the first cancels the turn, the second stops waiting for that. Returns False if no
        turn is running."""
        if self._turn is None:
            return False
        if self._cancelling is None:
            self.notify(Notice("… cancelling; Ctrl-C again does not wait for it"))
            self._cancelling = asyncio.create_task(self._cancel())
        else:
            self._turn.cancel()
        return True

    async def _cancel(self) -> None:
        await self._is_sent.wait()  # before that, the mesh has nothing to cancel
        try:
            await self.client.cancel(self.conversation_id)
        except MeshError as problem:
            self.notify(_error(problem))

    async def _interruptible(self, work: Coroutine[None, None, ExitStatus]) -> ExitStatus:
        self._turn = asyncio.create_task(work)
        try:
            await asyncio.wait({self._turn})
            if self._turn.cancelled():
                self.notify(Notice(f"not waiting any more; the turn may still run: {self.resume_command}"))
                return ExitStatus.INTERRUPTED
            status = self._turn.result()
            return ExitStatus.INTERRUPTED if self._cancelling else status
        finally:
            if self._cancelling:  # what waited was written for a turn that ends by itself
                self._draft = "\n".join(self._next)
                self._next.clear()
            tasks = [task for task in (self._turn, self._cancelling) if task is not None]
            self._turn = self._cancelling = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._terminal.end_turn()

    async def _send(self, message: str) -> ExitStatus:
        self._is_sent.clear()
        if not self.conversation_id:
            self.conversation_id = await self.client.create()
        self._transcript.expect(message)
        key = new_key()
        return await self._run_to_end(lambda: self.client.say(self.conversation_id, message, key))

    async def _run_to_end(self, begin: Begin | None = None) -> ExitStatus:
        """Follows the turn to its end, and asks for the decisions that it needs."""
        await self._follow(begin)
        while waiting := self._undecided:
            if not await self._decide(waiting):
                self.notify(*map(_waiting_notice, waiting), self._how_to_decide(waiting))
                return ExitStatus.WAITS
            await self._follow()
        return ExitStatus.ANSWERED if self._transcript.is_answered else ExitStatus.FAILED

    def _how_to_decide(self, waiting: Sequence[ApprovalRequired]) -> Notice:
        """Returns the command with which a person at a terminal can decide."""
        kinds = [kind_of(asked) for asked in waiting]
        token = "MESH_TOKEN=… " if any(kind.needs_token for kind in kinds) else ""
        verb = "Answer" if all(kind.is_question for kind in kinds) else "Decide"
        return Notice(f"{verb} it with: {token}{self.resume_command}")

    @property
    def _undecided(self) -> list[ApprovalRequired]:
        """The approvals that a person must decide now."""
        if not (self._transcript.is_settled and self._transcript.is_open):
            return []
        return [asked for uuid, asked in self._transcript.pending.items() if uuid not in self._decided]

    @property
    def _is_over(self) -> bool:
        return bool(self._undecided) or (self._transcript.is_settled and not self._transcript.is_open)

    async def _follow(self, begin: Begin | None = None) -> None:
        """Prints events until the turn ends or needs a person. ``begin`` is called once the stream is
        open."""
        lost = False
        after = self._transcript.seq
        if begin is None:
            self._is_sent.set()
            if self._is_over:
                return
        async with self._listening(), aclosing(self.client.events(self.conversation_id, after)) as stream:
            async for item in stream:
                if isinstance(item, Disconnected):
                    self.notify(*([] if lost else [Notice(f"… connection lost ({item.why}); coming back")]))
                    lost = True
                elif not isinstance(item, Connected):
                    self._terminal.show(self._transcript.see(item))
                elif begin is not None:
                    await begin()
                    begin = None
                    self._is_sent.set()
                elif lost:
                    self.notify(Notice("… connected again"))
                    lost = False
                if begin is None and self._is_over:
                    return

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Meanwhile, a person can type. A command that runs at the end is waited for."""
        over = asyncio.Event()
        listening = asyncio.create_task(self._listen(over))
        try:
            yield
            over.set()
            await listening
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, until: asyncio.Event) -> None:
        while True:
            try:
                line = await self._terminal.typed(until)
            except CancelRequested:
                self.interrupt()
                continue
            except InputEnded:
                line = _LEAVES
            if line is None:
                return
            await self._take(line)

    async def _take(self, line: str) -> None:
        """Runs a command for the turn that runs, and keeps every other line for after it."""
        if is_for_running_turn(line):
            self.notify(Notice(f"› {clean(line)}", "plain"))
            await self._handle(line)
        elif len(self._next) >= _MOST_WAITING:
            self.notify(Notice(f"✗ {_MOST_WAITING} messages wait already; this one does not", "bad"))
        else:
            self._next.append(line)
            self.notify(Notice(f"… waits for the end of the turn: {clean(line)}"))

    async def _decide(self, waiting: Sequence[ApprovalRequired]) -> bool:
        """Asks for each decision. Returns False if nobody can decide."""
        try:
            for index, asked in enumerate(waiting):
                decision = await self._decision(asked, place_of(index, waiting))
                if decision is None:
                    return False
                is_rejected = decision.choice == "reject" and not decision.reason
                if is_rejected and kind_of(asked).reject_ends_turn:
                    break  # the others need no decision
        except CancelRequested:
            await self.client.cancel(self.conversation_id)
        self._decided.update(asked.uuid for asked in waiting)
        return True

    async def _decision(self, asked: ApprovalRequired, place: str) -> Decision | None:
        """Returns the decision that the mesh has accepted. If the mesh refuses one, asks again."""
        while True:
            # --yes covers calls only: a call that may have run already needs a person, and so does a
            # question.
            by_itself = self._yes and kind_of(asked).is_call
            approved = Decision(asked.uuid, "approve")
            more = partial(self.client.preview, asked.uuid)
            decision = approved if by_itself else await self._terminal.decide(asked, place, more)
            if decision is None:
                return None
            try:
                await self.client.decide(decision)
            except RequestRefused as problem:
                self.notify(_error(problem))
                if problem.status in _DECIDED_ELSEWHERE:
                    return decision
                if by_itself:
                    raise
            else:
                return decision


def _error(problem: MeshError) -> Notice:
    return Notice(f"✗ {clean(str(problem))}", "bad")


def _waiting_notice(asked: ApprovalRequired) -> Notice:
    wanted, what = kind_of(asked).wanted, clean(asked.description[:_MAX_DESCRIPTION])
    who = asker_of(asked) if asked.place.agent.is_started else ""  # of which there may be many
    return Notice(f"{who and f'{who} '}waits for {wanted} {clean(asked.uuid)}: {what}", "ask")
