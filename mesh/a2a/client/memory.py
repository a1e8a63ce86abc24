"""An agent in this process whose answers come from a function. For tests of what is above the port."""

from collections.abc import Awaitable, Callable

from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteFailed, RemoteLost, RemoteTask

Script = Callable[[OutgoingMessage, ForwardedHeaders], Awaitable[RemoteTask]]


class MemoryAgent:
    """A `RemoteAgent` that takes every message id once.

    ``script`` is called for the first message with an id and its answer is kept; what it raises is raised and
    not kept. ``sent`` has every attempt, ``cancelled`` the tasks that were asked to stop, ``withdrawn`` the
    ids of messages that are refused. After `lose_next` the answer to a message is lost although the message
    arrived, and `recover` returns it, or None if the agent ``forgets``.
    """

    def __init__(self, script: Script, forgets: bool = False) -> None:
        self.sent: list[tuple[OutgoingMessage, ForwardedHeaders]] = []
        self.cancelled: list[str] = []
        self.withdrawn: set[str] = set()
        self.closed = False
        self.priced = True
        self.script = script
        self._forgets = forgets
        self._answers: dict[str, RemoteTask] = {}
        self._lost = 0

    def lose_next(self, number: int = 1) -> None:
        """Makes the answers to the next ``number`` messages get lost."""
        self._lost = number

    def forget_answers(self) -> None:
        """Makes the script answer anew to messages that were answered before."""
        self._answers.clear()

    async def send(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        self.sent.append((message, forwarded))
        if message.id in self.withdrawn:
            raise RemoteFailed("agent memory: the message was withdrawn")
        if message.id not in self._answers:
            self._answers[message.id] = await self.script(message, forwarded)
        if self._lost:
            self._lost -= 1
            raise RemoteLost("agent memory: the connection was lost")
        return self._answers[message.id]

    async def recover(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask | None:
        return None if self._forgets else await self.send(message, forwarded)

    async def is_priced(self, forwarded: ForwardedHeaders) -> bool:
        return self.priced

    async def withdraw(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> bool:
        self.withdrawn.add(message.id)
        return True

    async def cancel(self, task_id: str, forwarded: ForwardedHeaders) -> None:
        self.cancelled.append(task_id)

    async def close(self) -> None:
        self.closed = True
