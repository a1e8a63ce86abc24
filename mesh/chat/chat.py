"""Turns between a mesh and a terminal.

    message ─► say ─► events are printed ─► answered | failed | cancelled ─► next message
                        ▲               └─► paused ─► each approval is decided ─┐
                        └───────────────────────────────────────────────────────┘

The stream of events is opened before anything is said, so that nothing of the turn is missed; it begins after
the last event that was printed, so that what happened meanwhile is printed first. Ctrl-C (`Chat.interrupt`)
asks the mesh to end the turn, a second one stops looking at it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from enum import IntEnum

from mesh.chat.card import place_of
from mesh.chat.commands import Quit, obey
from mesh.chat.terminal import Left, Stopped, Terminal
from mesh.chat.transcript import Note, Transcript
from mesh.client.rest import Down, MeshClient, Refused, Up, new_key
from mesh.core.approvals import Decision, kind_of
from mesh.core.errors import MeshError
from mesh.core.events import ApprovalRequired
from mesh.display.text import clean
from mesh.journal.portable import read_lines

Begin = Callable[[], Awaitable[None]]

_TURNS_SHOWN = 3
_MOST_TOLD = 1_000
_DECIDED_ELSEWHERE = (404, 409)


class Status(IntEnum):
    """How a chat, or a turn of it, ended. These are exit statuses."""

    ANSWERED = 0
    FAILED = 1
    WAITS = 3
    INTERRUPTED = 130


class Chat:
    """One person's talk with one mesh. ``names`` are those of the tree's nodes by path; ``come_back`` is the
    command that goes on with a conversation, but for its id."""

    def __init__(
        self,
        client: MeshClient,
        terminal: Terminal,
        names: dict[str, str],
        come_back: str,
        *,
        yes: bool = False,
    ) -> None:
        self.client = client
        self.conversation_id = ""
        self._terminal = terminal
        self._names = names
        self._come_back = come_back
        self._yes = yes
        self._transcript = Transcript(names)
        self._done_with: set[str] = set()
        self._turn: asyncio.Task[Status] | None = None
        self._said = asyncio.Event()
        self._cancelling: asyncio.Task[None] | None = None

    async def talk(self, conversation_id: str = "") -> None:
        """Takes messages and commands until there are no more, in a conversation or in a new one."""
        try:
            if conversation_id:
                await self.resume(conversation_id)
            while True:
                await self._take(await self._terminal.message())
        except (Left, Quit):
            return

    async def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                await obey(self, line)
            else:
                await self.turn(line.strip())
        except MeshError as problem:
            self.say(_bad(problem))

    async def answer_all(self) -> Status | None:
        """Takes messages until there are no more, or one was not answered; None: there was none."""
        status = None
        while status in (None, Status.ANSWERED):
            try:
                status = await self.turn(await self._terminal.message())
            except Left:
                break
        return status

    def say(self, *notes: Note) -> None:
        self._terminal.show(notes)

    @property
    def hint(self) -> str:
        """How to come back to this conversation; empty while there is none."""
        return f"{self._come_back} {clean(self.conversation_id)}" if self.conversation_id else ""

    def new(self) -> None:
        """The next message begins a conversation."""
        self.conversation_id = ""
        self._transcript = Transcript(self._names)

    async def resume(self, conversation_id: str) -> Status:
        """Goes on with a conversation: recalls its last turns, and sees the one that is open through."""
        events, _ = read_lines((await self.client.log(conversation_id)).splitlines())
        self.new()
        self.conversation_id = conversation_id
        first = (events[-1].turn if events else 0) - _TURNS_SHOWN
        for event in events:
            parts = self._transcript.see(event)
            if event.turn > first:
                self._terminal.recall(parts)
        self.say(Note(f"conversation {clean(conversation_id)}"))
        if self._transcript.is_open:
            return await self._interruptible(self._see_through())
        return Status.ANSWERED

    async def turn(self, message: str) -> Status:
        """Says something, and sees it through to the end of its turn."""
        return await self._interruptible(self._say(message.encode(errors="replace").decode()))

    def interrupt(self) -> bool:
        """Ctrl-C: ends the turn; once more: does not wait for that. False: there is none."""
        if self._turn is None:
            return False
        if self._cancelling is None:
            self.say(Note("… cancelling; Ctrl-C again does not wait for it"))
            self._cancelling = asyncio.create_task(self._cancel())
        else:
            self._turn.cancel()
        return True

    async def _cancel(self) -> None:
        await self._said.wait()  # before, there is nothing to cancel yet
        try:
            await self.client.cancel(self.conversation_id)
        except MeshError as problem:
            self.say(_bad(problem))

    async def _interruptible(self, work: Coroutine[None, None, Status]) -> Status:
        self._turn = asyncio.create_task(work)
        try:
            await asyncio.wait({self._turn})
            if self._turn.cancelled():
                self.say(Note(f"not waiting any more; the turn may still run: {self.hint}"))
                return Status.INTERRUPTED
            status = self._turn.result()
            return Status.INTERRUPTED if self._cancelling else status
        finally:
            tasks = [task for task in (self._turn, self._cancelling) if task is not None]
            self._turn = self._cancelling = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._terminal.end_turn()

    async def _say(self, message: str) -> Status:
        self._said.clear()
        if not self.conversation_id:
            self.conversation_id = await self.client.create()
        self._transcript.expect(message)
        key = new_key()
        return await self._see_through(lambda: self.client.say(self.conversation_id, message, key))

    async def _see_through(self, begin: Begin | None = None) -> Status:
        """Follows the turn to its end, and has decided what it asks on the way."""
        await self._follow(begin)
        while waiting := self._waiting:
            if not await self._decide(waiting):
                self.say(*map(_told, waiting), self._how(waiting))
                return Status.WAITS
            await self._follow()
        return Status.ANSWERED if self._transcript.is_answered else Status.FAILED

    def _how(self, waiting: Sequence[ApprovalRequired]) -> Note:
        """The command that decides, for a person at a terminal."""
        kinds = [kind_of(asked) for asked in waiting]
        token = "MESH_TOKEN=… " if any(kind.needs_token for kind in kinds) else ""
        return Note(
            f"{'answer' if all(kind.is_question for kind in kinds) else 'decide'}: {token}{self.hint}"
        )

    @property
    def _waiting(self) -> list[ApprovalRequired]:
        """What a person must decide now."""
        if not (self._transcript.is_settled and self._transcript.is_open):
            return []
        return [asked for uuid, asked in self._transcript.pending.items() if uuid not in self._done_with]

    @property
    def _is_over(self) -> bool:
        return bool(self._waiting) or (self._transcript.is_settled and not self._transcript.is_open)

    async def _follow(self, begin: Begin | None = None) -> None:
        """Prints what happens until the turn ends or needs a person. ``begin`` is done once it is watched."""
        lost = False
        after = self._transcript.seq
        if begin is None:
            self._said.set()
            if self._is_over:
                return
        async with aclosing(self.client.events(self.conversation_id, after)) as stream:
            async for item in stream:
                if isinstance(item, Down):
                    self.say(*([] if lost else [Note(f"… connection lost ({item.why}); coming back")]))
                    lost = True
                elif not isinstance(item, Up):
                    self._terminal.show(self._transcript.see(item))
                elif begin is not None:
                    await begin()
                    begin = None
                    self._said.set()
                elif lost:
                    self.say(Note("… connected again"))
                    lost = False
                if begin is None and self._is_over:
                    return

    async def _decide(self, waiting: Sequence[ApprovalRequired]) -> bool:
        """Has each decided; False: nobody is there to do it."""
        try:
            for index, asked in enumerate(waiting):
                decision = await self._decision(asked, place_of(index, waiting))
                if decision is None:
                    return False
                if decision.choice == "reject" and not decision.reason:
                    break  # the turn ends with it: the others need no decision
        except Stopped:
            await self.client.cancel(self.conversation_id)
        self._done_with.update(asked.uuid for asked in waiting)
        return True

    async def _decision(self, asked: ApprovalRequired, place: str) -> Decision | None:
        """What was decided, as the mesh has taken it; what it cannot take is asked again."""
        while True:
            # Nobody may say beforehand that what may have run already is run again, nor answer a question.
            by_itself = self._yes and kind_of(asked).is_call
            approved = Decision(asked.uuid, "approve")
            decision = approved if by_itself else await self._terminal.decide(asked, place)
            if decision is None:
                return None
            try:
                await self.client.decide(decision)
            except Refused as problem:
                self.say(_bad(problem))
                if problem.status in _DECIDED_ELSEWHERE:
                    return decision
                if by_itself:
                    raise
            else:
                return decision


def _bad(problem: MeshError) -> Note:
    return Note(f"✗ {clean(str(problem))}", "bad")


def _told(asked: ApprovalRequired) -> Note:
    return Note(
        f"waits for {kind_of(asked).wanted} {clean(asked.uuid)}: {clean(asked.description[:_MOST_TOLD])}",
        "ask",
    )
