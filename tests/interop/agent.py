"""The agent that the programs by others speak with."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mesh.core.events import LlmCall
from mesh.core.messages import Results, User
from mesh.llm.port import LlmRequest
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.ports import free_port
from tests.worlds.receiver import Receiver


class Model(Spoken):
    """Does what it is told: "add 2" calls the tool, "ask who?" asks the specialist "who?", "pause" takes its
    time, "wait" never answers."""

    def __init__(self) -> None:
        super().__init__(self._told)

    async def _told(self, request: LlmRequest) -> LlmCall:
        last = request.messages[-1]
        if isinstance(last, Results):
            specialist = [each.content for each in last.results if each.name == "a2a_specialist"]
            return says("It is done." if not specialist else f"The specialist says: {specialist[0]}")
        assert isinstance(last, User)
        if last.text == "wait":
            await asyncio.Event().wait()
        if last.text == "pause":
            await asyncio.sleep(0.5)
        match last.text.split(" ", 1):
            case ["add", number]:
                return calls(("add", {"n": int(number)}))
            case ["ask", question]:
                return calls(("a2a_specialist", {"message": question}))
        return says(f"You said: {last.text}")


CONFIG = """
card: {push_hosts: [127.0.0.1]}
a2a: [{name: specialist, url: "http://127.0.0.1:%s"}]
"""


class Agent(LiveMesh):
    """A mesh with such a model. Its specialist is expected at a port of this machine."""

    def __init__(self) -> None:
        self.specialist_port = free_port()
        super().__init__(Model(), SIMPLE + CONFIG % self.specialist_port)

    @property
    def done(self) -> list[str]:
        """What the tools did."""
        return self.mesh.ledger.lines

    @contextmanager
    def desk(self) -> Iterator[Receiver]:
        """Where notifications may be sent."""
        receiver = Receiver()
        up = receiver.up()
        self.run(up.__aenter__())
        try:
            yield receiver
        finally:
            self.run(up.__aexit__(None, None, None))
