"""Which of several actors of a node carries a call, and which machines have one where each machine does."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

from deployments import cluster
from deployments.services import NodeService
from mesh.core.errors import Unavailable
from mesh.net.backoff import Backoff
from mesh.net.silent_peers import SilentPeers
from mesh.runtime.logs import fields

ASKED_AGAIN = Backoff(first_s=1.0, longest_s=15.0)
"""When a replica that did not answer is asked again."""
_ASKS_ANOTHER_S = 0.2
"""How long the caller of a node with replicas waits for one before it asks another one as well."""
_KNOWN_FOR_S = 5.0
_ANSWERED_WITHIN_S = 10.0
_asking_ray = ThreadPoolExecutor(1, "asking-for-machines")
"""Of its own: Ray may keep it waiting while its control store is away, and nobody is to wait behind that."""
_machines: "dict[frozenset[tuple[str, float]], Machines]" = {}
_log = logging.getLogger("mesh.replicas")


class NodeReplicas:
    """The replicas of one node by their names, in turn; or first the one with the name ``near``. One that
    does not answer is left out as long as another one does: its machine may be cut off, or its process be
    stopped."""

    def __init__(self, replicas: Mapping[str, NodeService], near: str = "") -> None:
        self._replicas = dict(replicas)
        self._near = near
        self._silent: SilentPeers[str] = SilentPeers(ASKED_AGAIN, time.monotonic)
        self._asking: set[asyncio.Task[bool]] = set()
        self._turns = count()

    def change(self, replicas: Mapping[str, NodeService]) -> None:
        """These are the replicas from now on."""
        self._replicas = dict(replicas)
        self._silent.forget_except({*replicas})

    async def next(self) -> NodeService:
        """The next one that answers; if it is the only one, that. While one takes its time, others are asked
        as well. Raises `Unavailable`."""
        names, first = [*self._replicas], next(self._turns)
        if not names:
            raise Unavailable("no machine is known that has what the node asks for, or Ray does not say")
        if len(names) == 1:
            return self._replicas[names[0]]
        in_turn = [names[(first + each) % len(names)] for each in range(len(names))]
        silent = self._silent.ids()
        asked_now: dict[asyncio.Task[bool], NodeService] = {}
        for name in sorted(in_turn, key=lambda each: (each in silent, each != self._near)):
            asked_now[self._ask(name)] = self._replicas[name]
            if found := await self._first(asked_now, _ASKS_ANOTHER_S):
                return found
        if found := await self._first(asked_now, None):
            return found
        raise Unavailable(f"none of the {len(names)} replicas of the node answers")

    def _ask(self, name: str) -> asyncio.Task[bool]:
        # It goes on when another one has answered, so that it is known who is silent.
        task = asyncio.create_task(self._answers(name, self._replicas[name]))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _first(
        self, asked_now: dict[asyncio.Task[bool], NodeService], within_s: float | None
    ) -> NodeService | None:
        """The first that answers within this time. Those that do not are taken out of ``asked_now``."""
        while asked_now:
            done, _ = await asyncio.wait(asked_now, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return None
            for task in done:
                replica = asked_now.pop(task)
                if task.result():
                    return replica
        return None

    async def _answers(self, name: str, replica: NodeService) -> bool:
        # Each time: it costs a hundredth of what the call that follows does, which would wait for a process
        # that is stopped as long as a turn may last.
        try:
            await replica.alive()
        except Unavailable:
            self._note_silent(name)
            return False
        self._silent.forget(name)
        return True

    def note_lost(self, replica: NodeService) -> None:
        """A call of it was lost."""
        for name, each in self._replicas.items():
            if each is replica:
                self._silent.note(name)

    def _note_silent(self, name: str) -> None:
        # Others may have asked at the same time, and it may be none of the replicas any more.
        if name in self._replicas and name not in self._silent.ids():
            self._silent.note(name)


class Machines:
    """The machines that take an actor, as Ray knew them lately: ``ask`` asks it. While it does not answer,
    those of before."""

    def __init__(self, ask: Callable[[], Sequence[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._known: Sequence[str] = ()
        self._known_until = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def lately(self) -> Sequence[str]:
        """Their ids. Waits for Ray only if none is known, and not for long."""
        if self._clock() >= self._known_until and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._look())
        if not self._known and self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_ANSWERED_WITHIN_S)
        return self._known

    async def _look(self) -> None:
        self._known_until = self._clock() + _KNOWN_FOR_S
        try:
            asking = asyncio.get_running_loop().run_in_executor(_asking_ray, self._ask)
            self._known = await asking or self._known
        except Exception as problem:  # noqa: BLE001 - whatever Ray raises while its control store is away
            _log.warning("event=machines_unknown %s", fields(message=problem))


def machines_for(resources: Mapping[str, float]) -> Machines:
    """Those of the cluster that have these resources; the same for all who ask in this process."""
    key = frozenset(resources.items())
    if key not in _machines:
        _machines[key] = Machines(partial(cluster.machines, dict(resources)))
    return _machines[key]
