"""The parts of a mesh as they see each other: the ports of `mesh`, by calls to actors.

gateway   `RayBackend`                    ──►  keepers, sessions
keeper    `RemoteTree`, `RemoteNode`      ──►  nodes
node      `RemoteRecorder`                ──►  keepers
          `RemoteNode`                    ──►  nodes (its children)
          `RemoteSession`                 ──►  sessions
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from ray.exceptions import ActorDiedError, RayError

from deployments import addresses, cluster
from deployments.addresses import asked, mcp_session_stub, node_stub, session_name
from deployments.blueprint import Blueprint, placements
from deployments.channel import CallFailed, ConnectionLost
from deployments.directory import KeeperDirectory
from deployments.node_replicas import ASKED_AGAIN, NodeReplicas, machines_for
from deployments.services import NodeService, ToolSessionService
from mesh.config.kept_versions import Versions
from mesh.config.model import McpServer
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.errors import ConfigError, JournalError, ToolSessionError, Unavailable
from mesh.core.events import AnyEvent, Preview, ToolCall, ToolResult
from mesh.core.execution import ExecutionContext
from mesh.core.mesh_state import NOT_ALL_SHARDS, STORE_AWAY, MeshPart, PartKind, Rollout
from mesh.core.places import ROOT, Place
from mesh.core.verdict import Verdict
from mesh.journal.shards import Shards
from mesh.keeper.list_replies import ListRequest, listed
from mesh.keeper.replies import WatchedEvents, raise_for_refusal
from mesh.keeper.requests import Follow, FollowAgents, Request, RequestFor, Watch
from mesh.mcp.port import Catalogue, Claim, ToolOutcome, ToolSession
from mesh.mcp.progress import OnProgress
from mesh.mcp.replicas import ReplicatedSession
from mesh.metrics.meters import Series
from mesh.metrics.of_events import waiting_since
from mesh.metrics.table import KEEPERS_AWAY, SHARDS_WITHOUT_KEEPER
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.runtime.logs import fields
from mesh.store.chosen import store_of
from mesh.tree.turn import (
    AbandonedTask,
    Ack,
    Activation,
    Hearing,
    News,
    PassInput,
    PassOutput,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
    UnsettledCall,
)

_PROBE_S = 2.0
"""How long `RayBackend.parts` waits for each actor: a few seconds are what load balancers wait."""
_AWAY_S = 3.0
"""How long a list waits for keepers that are away while others answer."""
_GRACE_S = 5.0
"""How much longer than its own bound a call to a session's actor may take: so that the session's own error,
which says more, arrives first."""

_log = logging.getLogger("mesh.gateway")
R = TypeVar("R")
T = TypeVar("T")


async def no_rollout() -> None:
    """For the backend of one version, beside which nobody deploys another one."""


class RayBackend:
    """`Backend` by calls to actors. ``ask_rollout`` is its `Backend.rollout`."""

    def __init__(self, blueprint: Blueprint, ask_rollout: Callable[[], Awaitable[Rollout | None]]) -> None:
        self._blueprint = blueprint
        self._ask_rollout = ask_rollout
        config = blueprint.config()
        self._store = store_of(config, blueprint.data_dir)
        self._directory = KeeperDirectory(self._store.shards)
        self._keepers = self._directory.stubs(blueprint.shards)
        self._replicas = [replicas_of(blueprint, server, server.start_timeout_s) for server in config.servers]
        self._sessions = [as_one(replicas) for replicas in self._replicas]
        self.grant_book = self._store.grants
        self.versions = self._store.versions

    async def close(self) -> None:
        """Ends its connections."""
        self._directory.close()
        for replicas in self._replicas:
            for session in replicas:
                session.disconnect()
        await self._store.close()

    async def ask(self, owner: str, request: RequestFor[R]) -> R:
        return await self._ask(self._blueprint.shard_of(owner), request)

    async def ask_all(self, request: RequestFor[R]) -> list[R]:
        if (known := await self._known_to_store(request)) is not None:
            return [known]
        return await asyncio.gather(*(self._ask(shard, request) for shard in range(self.shards)))

    async def ask_reachable(self, request: RequestFor[R]) -> tuple[list[R], bool]:
        if (known := await self._known_to_store(request)) is not None:
            return [known], True
        return await first_answers([self._ask(shard, request) for shard in range(self.shards)], _AWAY_S)

    async def watch(self, request: Watch) -> WatchedEvents:
        return raise_for_refusal(await self._keepers[self._blueprint.shard_of(request.id)].watch(request))

    async def follow(self, shard: int, request: RequestFor[R]) -> R:
        reply = await self._keepers[shard].follow(shard, cast(Follow | FollowAgents, request))
        return cast(R, raise_for_refusal(reply))

    @property
    def shards(self) -> int:
        return self._blueprint.shards

    async def metrics(self) -> dict[str, list[Series]]:
        map = await self._directory.newest()
        hosts = [host for host in map.hosts if host.is_live]
        answers = await asyncio.gather(
            *(self._directory.metrics(host) for host in hosts), return_exceptions=True
        )
        found: dict[str, list[Series]] = {}
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, BaseException):
                _log.warning("event=keeper_not_measured %s", fields(keeper=host.name, message=answer))
            else:
                found[host.name] = answer
        holders = [map.host_of(shard) for shard in range(self.shards)]
        of_none = sum(holder is None or not holder.is_live for holder in holders)
        gauges = {SHARDS_WITHOUT_KEEPER: of_none, KEEPERS_AWAY: len(hosts) - len(found)}
        listing = self._store.listing()
        waiting = waiting_since([await listing.waiting_since()]) if listing else []
        return {**found, "": [*(Series(metric.name, (), now) for metric, now in gauges.items()), *waiting]}

    async def tools(self) -> list[dict[str, Any]]:
        catalogues = await asyncio.gather(*(session.catalogue() for session in self._sessions))
        return [tool.shown() for catalogue in catalogues for tool in catalogue.tools if not tool.is_check]

    async def parts(self) -> list[MeshPart]:
        blueprint = self._blueprint
        probes: dict[MeshPart, Awaitable[Any]] = {
            **await self._keeper_probes(),
            **{
                _part("node", f"{path} {placement.name}/{replica}"): self._node_ready(path, str(replica))
                for path, placement in blueprint.nodes.items()
                for replica in range(placement.replicas or 0)
            },
            **{  # on any machine: one that has just joined is not ready yet
                _part("node", f"{path} {placement.name}"): self._any_node_ready(path)
                for path, placement in blueprint.nodes.items()
                if placement.replicas is None
            },
            **{
                _part("mcp", session.name): session.catalogue()
                for replicas in self._replicas
                for session in replicas
            },
        }
        answers = await asyncio.gather(
            *(asyncio.wait_for(probe, _PROBE_S) for probe in probes.values()), return_exceptions=True
        )
        return [
            msgspec.structs.replace(part, answers=not isinstance(answer, BaseException))
            for part, answer in zip(probes, answers, strict=True)
        ]

    async def rollout(self) -> Rollout | None:
        return await self._ask_rollout()

    async def _any_node_ready(self, path: str) -> None:
        machines = await machines_for(self._blueprint.nodes[path].resources).lately()
        asking = [asyncio.create_task(self._node_ready(path, each)) for each in machines]
        try:
            for answer in asyncio.as_completed(asking):
                with suppress(RayError):
                    return await answer
            raise Unavailable("it is on no machine")
        finally:
            for each in asking:
                each.cancel()

    async def _node_ready(self, path: str, replica: str) -> None:
        find = partial(addresses.node, self._blueprint, path, replica)
        node = await asked(find)
        try:
            await node.ready.remote()
        except ActorDiedError:  # it has left, as an older version that was idle
            addresses.discard(node)
            await (await asked(find)).ready.remote()

    async def _keeper_probes(self) -> dict[MeshPart, Awaitable[Any]]:
        """Questions to the keepers that have the shards, which are to be those of this deployment, or of a
        newer one."""
        try:
            async with asyncio.timeout(_PROBE_S):
                map = await self._directory.newest()
        except (Unavailable, TimeoutError) as problem:
            return {_part("keeper", STORE_AWAY): _failed(problem)}
        hosts = [map.host_of(shard) for shard in range(self.shards)]
        oldest = self._blueprint.generation
        lacks = [shard for shard, host in enumerate(hosts) if host is None or host.generation < oldest]
        without = {_part("keeper", NOT_ALL_SHARDS): _failed(Unavailable(f"shards {lacks}"))} if lacks else {}
        there = Counter(host for host in hosts if host)
        alive = {
            _part("keeper", host.name, host.generation, shards): self._directory.alive(host)
            for host, shards in there.items()
        }
        return {**without, **alive}

    async def _known_to_store(self, request: RequestFor[R]) -> R | None:
        """The answer of a store that knows what all keepers know, also while they are away; None if there is
        none."""
        listing = self._store.listing()
        if listing is None or not isinstance(request, ListRequest):
            return None
        return cast(R, await listed(listing, request))

    async def _ask(self, shard: int, request: RequestFor[R]) -> R:
        reply = raise_for_refusal(await self._keepers[shard].ask(shard, cast(Request, request)))
        return cast(R, reply)


class RemoteRecorder:
    """`Recorder` by calls to the keeper that owns the conversation."""

    def __init__(self, blueprint: Blueprint, shards: Shards) -> None:
        self._blueprint = blueprint
        self._keepers = KeeperDirectory(shards).stubs(blueprint.shards)

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        keeper = self._keepers[self._blueprint.shard_of(activation.conversation_id)]
        return await keeper.append(activation, events)

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        keeper = self._keepers[self._blueprint.shard_of(activation.conversation_id)]
        return await keeper.reserve(activation, events, request)

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        keeper = self._keepers[self._blueprint.shard_of(activation.conversation_id)]
        return await keeper.start(activation, events, scopes, asker)

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        keeper = self._keepers[self._blueprint.shard_of(activation.conversation_id)]
        return await keeper.slots(activation, request)

    async def restart(self, lost: Activation) -> Restarted:
        keeper = self._keepers[self._blueprint.shard_of(lost.conversation_id)]
        return await keeper.restart(lost)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        keeper = self._keepers[self._blueprint.shard_of(conversation_id)]
        return await keeper.remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        keeper = self._keepers[self._blueprint.shard_of(conversation_id)]
        return await keeper.grants(conversation_id, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        keeper = self._keepers[self._blueprint.shard_of(conversation_id)]
        return await keeper.denial(conversation_id, call)


class RemoteNode:
    """`NodeService` by calls to the actors of one node. ``spreads``: where each machine has one, the calls
    go to all of them in turn, and not to the one on this machine as long as that answers."""

    def __init__(self, blueprint: Blueprint, path: str, *, spreads: bool = False) -> None:
        self._blueprint = blueprint
        self._path = path
        self._carriers: dict[Activation, NodeService] = {}
        self._placement = blueprint.nodes[path]
        self._stubs: dict[str, NodeService] = {}
        self._finding: set[asyncio.Task[None]] = set()
        replicas = self._placement.replicas
        self._machines = machines_for(self._placement.resources)
        self._follows = replicas is None and not blueprint.leaves
        if replicas is None:
            here = cluster.this_machine()
            # A version that leaves has its nodes where they are used, and not on each machine.
            self._replicas = NodeReplicas(
                {} if self._follows else {here: self._stub(here)}, "" if spreads else here
            )
        else:
            self._replicas = NodeReplicas({str(n): self._stub(str(n)) for n in range(max(1, replicas))})

    async def __call__(self, turn: PassInput) -> PassOutput:
        """`RunNode`."""
        return await self.run(turn)

    async def find(self) -> None:
        """Returns when each replica that is always there has been found. Where it listens, only Ray's control
        store knows, which may be away later: the calls after this one do not need it."""
        if self._blueprint.leaves:
            return
        if self._follows:
            await self._follow_machines()  # as each call does later, for machines that join
            await asyncio.gather(*self._finding)
        else:
            await asyncio.gather(*(self._find(str(n)) for n in range(self._placement.replicas or 0)))

    async def _find(self, replica: str) -> None:
        for delay_s in ASKED_AGAIN.delays():
            if await addresses.find_node(self._blueprint, self._path, replica):
                return
            if self._follows and replica not in await self._machines.lately():
                return
            await asyncio.sleep(delay_s)

    def _stub(self, replica: str) -> NodeService:
        return node_stub(self._blueprint, self._path, replica)

    async def _next(self) -> NodeService:
        if self._follows:
            await self._follow_machines()
        return await self._replicas.next()

    async def _follow_machines(self) -> None:
        machines = await self._machines.lately()
        if self._stubs.keys() == {*machines}:
            return
        for gone in self._stubs.keys() - {*machines}:
            addresses.forget_node(self._blueprint, self._path, gone)
        joined = [machine for machine in machines if machine not in self._stubs]
        self._stubs = {machine: self._stubs.get(machine) or self._stub(machine) for machine in machines}
        self._replicas.change(self._stubs)
        for machine in joined:
            finding = asyncio.create_task(self._find(machine))
            self._finding.add(finding)
            finding.add_done_callback(self._finding.discard)

    async def run(self, turn: PassInput) -> PassOutput:
        carrier = self._carriers[turn.activation] = await self._next()
        try:
            return await carrier.run(turn)
        except ConnectionLost:
            self._replicas.note_lost(carrier)
            raise
        finally:
            if self._carriers.get(turn.activation) is carrier:
                del self._carriers[turn.activation]

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        # The other replicas know nothing of this run.
        carrier = self._carriers.get(activation)
        if carrier is None:
            raise Unavailable(f"nothing was called at {activation.at}")
        return await carrier.hear(activation, news, is_durable)

    async def problems(self, call: ToolCall) -> str:
        try:
            return await (await self._next()).problems(call)
        except ToolSessionError as problem:
            # The node does not know its tools yet, as while a server starts again.
            raise Unavailable(str(problem)) from problem

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        try:
            return await (await self._next()).verdict(call, grants)
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        try:
            return await (await self._next()).preview(call, offset)
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            return await (await self._next()).settle(call)
        except (ToolSessionError, CallFailed) as problem:
            # The node does not know its tools yet, or has a defect. The turn is about to end, and the call
            # may have run: the keeper asks again for a while before it gives up on the result.
            raise Unavailable(str(problem)) from problem

    async def cancel(self, task: AbandonedTask) -> None:
        await (await self._next()).cancel(task)


class RemoteTree:
    """`Tree`: each turn runs on the version that it began on, as long as that is known."""

    def __init__(self, blueprint: Blueprint, kept: Versions) -> None:
        self._blueprint = blueprint
        self._kept = kept
        self._versions = {blueprint.digest: blueprint}
        self._nodes: dict[tuple[str, str], RemoteNode] = {}

    async def find(self) -> None:
        """Finds the root of the newest version; see `RemoteNode.find`."""
        await (await self._node(self._blueprint.digest, ROOT.path)).find()

    async def run(self, turn: PassInput) -> PassOutput:
        try:
            root = await self._node(turn.digest, ROOT.path)
        except ConfigError as problem:
            return PassOutput("failed", str(problem))
        return await root.run(turn)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        try:
            asking = await self._node(digest, Place(node).path)
        except ConfigError as problem:
            return str(problem)
        return await asking.problems(ToolCall(id="", name=tool, arguments=arguments))

    async def verdict(self, digest: str, node: str, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        return await (await self._asking(digest, node)).verdict(call, grants)

    async def preview(self, digest: str, node: str, call: ToolCall, offset: int) -> Preview | None:
        return await (await self._asking(digest, node)).preview(call, offset)

    async def cancel(self, task: AbandonedTask) -> None:
        try:
            node = await self._node(task.digest, Place(task.node).path)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None
        await node.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            node = await self._node(call.digest, call.intent.place.path)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None
        return await node.settle(call)

    async def hear(self, digest: str, activation: Activation, news: News, is_durable: bool) -> Hearing:
        return await (await self._asking(digest, ROOT.text)).hear(activation, news, is_durable)

    async def _asking(self, digest: str, node: str) -> RemoteNode:
        try:
            return await self._node(digest, Place(node).path)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None

    async def _node(self, digest: str, path: str) -> RemoteNode:
        if (digest, path) not in self._nodes:
            version = await self._version(digest)
            self._nodes.setdefault((digest, path), RemoteNode(version, path))
        return self._nodes[digest, path]

    async def _version(self, digest: str) -> Blueprint:
        """Raises `ConfigError` when it is not known any more, or cannot run here, and `JournalError`."""
        if digest not in self._versions:
            kept = await self._kept.kept(digest)
            version = replace(self._blueprint, digest=digest, leaves=True, **kept._asdict())
            self._versions[digest] = replace(version, nodes=placements(version.config()))
        return self._versions[digest]


class RemoteSession:
    """`ToolSession` by calls to the actor that owns the session with a replica of ``server``; ``name`` tells
    replicas apart. ``timeout_s`` bounds the calls that have no bound of their own. ``disconnect`` closes the
    connection to the actor."""

    def __init__(
        self,
        server: str,
        name: str,
        session: ToolSessionService,
        timeout_s: float,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self.server = server
        self.name = name
        self.disconnect = disconnect
        self._timeout_s = timeout_s
        self._session = session

    async def catalogue(self) -> Catalogue:
        return await self._within(self._timeout_s, self._session.catalogue())

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        return await self._within(timeout_s, self._session.changed(version, timeout_s))

    async def identity(self) -> str:
        return await self._within(self._timeout_s, self._session.identity())

    async def backlog(self) -> int:
        try:
            return await self._within(self._timeout_s, self._session.backlog())
        except ConnectionLost as problem:
            raise ToolSessionError(f"{self.name}: {problem}", False) from None

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        try:
            async with asyncio.timeout((timeout_s or self._timeout_s) + _GRACE_S):
                async with self._followed(on_progress) as progress_id:
                    return await self._session.call(name, arguments, timeout_s, claim, context, progress_id)
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: {name} did not answer in time", True) from None
        except ConnectionLost as problem:
            raise ToolSessionError(
                f"{self.server}: the process that held the session died", True
            ) from problem

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                return await self._session.settle(claim)
        except TimeoutError:
            # Not a `ToolSessionError`: that would say that nobody will ever know.
            raise Unavailable(f"{self.server}: its session does not say what came of a call") from None

    async def stop(self, claim: Claim) -> None:
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._session.stop(claim)
        except (TimeoutError, ConnectionLost):
            raise Unavailable(f"{self.server}: its session cannot be told to stop a call") from None

    async def close(self) -> None:
        """Does nothing: the session belongs to its actor."""

    @asynccontextmanager
    async def _followed(self, on_progress: OnProgress | None) -> AsyncIterator[str]:
        """The id under which the progress of a call is asked for while it runs."""
        if on_progress is None:
            yield ""
            return
        progress_id = secrets.token_hex(8)
        following = asyncio.create_task(self._follow(progress_id, on_progress))
        try:
            yield progress_id
        finally:
            following.cancel()
            # Where it failed, the call does, too, and says why.
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, progress_id: str, on_progress: OnProgress) -> None:
        # Invariant: the call is sent first, on the same connection, so that its progress is known there.
        while (progress := await self._session.progress(progress_id)) is not None:
            on_progress(progress)

    async def _within(self, timeout_s: float, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return await call
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: its session does not answer", False) from None


def replicas_of(blueprint: Blueprint, server: McpServer, timeout_s: float) -> list[RemoteSession]:
    """The sessions with an MCP server."""
    found = []
    for replica in range(server.replicas):
        session, disconnect = mcp_session_stub(blueprint, server, replica)
        name = session_name(server, replica)
        found.append(RemoteSession(server.name, name, session, timeout_s, disconnect))
    return found


def as_one(replicas: Sequence[RemoteSession]) -> ToolSession:
    """The sessions with one server as the nodes see them."""
    return ReplicatedSession(replicas[0].server, replicas) if len(replicas) > 1 else replicas[0]


async def first_answers(calls: Iterable[Coroutine[Any, Any, T]], within_s: float) -> tuple[list[T], bool]:
    """The answers that there are after this time, and whether these are all. As long as there is none, it
    waits on for the first one. Raises `Unavailable` or `JournalError` if no call is answered, and the error
    of any that fails for another reason."""
    waiting = tasks = {asyncio.create_task(call) for call in calls}
    answers: list[T] = []
    away: list[BaseException] = []
    try:
        done, waiting = await asyncio.wait(tasks, timeout=within_s)
        while True:
            answers += [task.result() for task in done if not task.exception()]
            for problem in [failed for task in done if (failed := task.exception())]:
                if not isinstance(problem, Unavailable | JournalError):
                    raise problem
                away.append(problem)
            if answers or not waiting:
                break
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    if not answers:
        raise away[0]
    return answers, not away and not waiting


def _part(kind: PartKind, name: str, generation: int = 0, shards: int = 0) -> MeshPart:
    return MeshPart(kind=kind, name=name, answers=False, generation=generation, shards=shards)


async def _failed(problem: Exception) -> None:
    raise problem
