"""Another agent in this process: a function says what it answers. For tests of what is above the port."""

from collections.abc import Awaitable, Callable

from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteFailed, RemoteLost, RemoteTask

Script = Callable[[OutgoingMessage, ForwardedHeaders], Awaitable[RemoteTask]]


class MemoryAgent:
    """See `RemoteAgent`. A message id counts once: ``script`` runs for the first of them, and
    what it raises is raised and not kept. ``sent`` has every try, ``cancelled`` the tasks that were to stop,
    ``withdrawn`` the ids of messages that are refused.

    `lose_next` makes an answer get lost on its way: the message has arrived, and `recover` tells what came of
    it, or (``forgets``) that nobody knows.
    """

    def __init__(self, script: Script, forgets: bool = False) -> None:
        self.sent: list[tuple[OutgoingMessage, ForwardedHeaders]] = []
        self.cancelled: list[str] = []
        self.withdrawn: set[str] = set()
        self.closed = False
        self.script = script
        self._forgets = forgets
        self._answers: dict[str, RemoteTask] = {}
        self._lost = 0

    def lose_next(self, number: int = 1) -> None:
        """The answers of the next ``number`` messages are lost."""
        self._lost = number

    def forget_answers(self) -> None:
        """What it answered so far it would answer anew."""
        self._answers.clear()

    async def send(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        self.sent.append((message, hop))
        if message.id in self.withdrawn:
            raise RemoteFailed("agent memory: the message was withdrawn")
        if message.id not in self._answers:
            self._answers[message.id] = await self.script(message, hop)
        if self._lost:
            self._lost -= 1
            raise RemoteLost("agent memory: the connection was lost")
        return self._answers[message.id]

    async def recover(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask | None:
        return None if self._forgets else await self.send(message, hop)

    async def withdraw(self, message: OutgoingMessage, hop: ForwardedHeaders) -> bool:
        self.withdrawn.add(message.id)
        return True

    async def cancel(self, task_id: str, hop: ForwardedHeaders) -> None:
        self.cancelled.append(task_id)

    async def close(self) -> None:
        self.closed = True
