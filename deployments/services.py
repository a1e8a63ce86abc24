"""What actors can be asked by each other: their services, and the terms of each method.

Every method that does the same when it runs twice is repeated while the other actor is gone, so that a
restart of an actor shows as a delay. The others are not: `NodeService.run` is followed by another pass, and a
tool call may have run.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from deployments.rpc import FOREVER, CallTerms, Service
from mesh.core.events import Preview, ToolCall, ToolResult
from mesh.core.execution import ExecutionContext
from mesh.core.verdict import Verdict
from mesh.journal.shards import GivenShard
from mesh.keeper.replies import FollowReply, Reply, WatchReply
from mesh.keeper.requests import Follow, FollowAgents, Request, Watch
from mesh.mcp.port import Catalogue, Claim, ToolOutcome
from mesh.mcp.progress import Progress
from mesh.metrics.meters import Series
from mesh.policy.grants import Grant
from mesh.tree.turn import (
    AbandonedTask,
    Activation,
    Hearing,
    News,
    PassInput,
    PassOutput,
    Recorder,
    UnsettledCall,
)


class KeeperService(Recorder, Protocol):
    """A keeper, as gateways and nodes see it."""

    async def ask(self, shard: int, request: Request) -> Reply:
        """Answers any request to a shard; what is wrong becomes a reply too."""
        ...

    async def watch(self, request: Watch) -> WatchReply:
        """See `Backend.watch`."""
        ...

    async def follow(self, shard: int, request: Follow | FollowAgents) -> FollowReply:
        """See `Backend.follow`."""
        ...

    async def receive(self, given: GivenShard) -> bool:
        """See `KeeperHost.receive`."""
        ...

    async def metrics(self) -> list[Series]:
        """See `KeeperHost.metrics`."""
        ...

    async def alive(self) -> None:
        """Nothing: whoever asks wants to know that it answers."""
        ...


class NodeService(Protocol):
    """A node of the tree, as its parent and the keepers see it. For other methods than `run` see `Tree`."""

    async def run(self, turn: PassInput) -> PassOutput:
        """See `RunNode`."""
        ...

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        """See `RunNode`."""
        ...

    async def problems(self, call: ToolCall) -> str:
        """What is wrong with a tool call that this node is about to make; empty if nothing."""
        ...

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        ...

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        """See `Tree.preview`."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        ...

    async def alive(self) -> None:
        """As `KeeperService.alive`."""
        ...


KEEPER = Service(
    KeeperService,
    {
        # A request is idempotent by its key, and may take as long as a turn.
        KeeperService.ask: CallTerms(repeat_for_s=60, retry_after_s=5),
        # The keeper must not keep a watcher, or the place of an exclusive one, for a client that has left.
        KeeperService.watch: CallTerms(repeat_for_s=60, retry_after_s=5, cancels=True),
        KeeperService.follow: CallTerms(repeat_for_s=60, retry_after_s=5, cancels=True),
        KeeperService.alive: CallTerms(within_s=2),
        KeeperService.metrics: CallTerms(within_s=2),
        KeeperService.receive: CallTerms(within_s=10),  # longer than `KeeperHost.receive` takes
        # A pass waits for these; when the keeper does not answer for so long, the pass is interrupted.
        KeeperService.append: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.reserve: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.start: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.slots: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.restart: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.remaining: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.grants: CallTerms(repeat_for_s=FOREVER, within_s=30),
        KeeperService.denial: CallTerms(repeat_for_s=FOREVER, within_s=30),
    },
)

NODE = Service(
    NodeService,
    {
        NodeService.run: CallTerms(cancels=True),
        NodeService.hear: CallTerms(cancels=True, end_within_s=1),  # bounded by `mesh.tree.nodes_below`
        NodeService.problems: CallTerms(),
        NodeService.verdict: CallTerms(),
        NodeService.preview: CallTerms(),
        NodeService.settle: CallTerms(),
        NodeService.cancel: CallTerms(),
        NodeService.alive: CallTerms(within_s=2),
    },
)


class ToolSessionService(Protocol):
    """The session with a replica of an MCP server, as nodes see it: `ToolSession`, with progress to be asked
    for."""

    async def catalogue(self) -> Catalogue:
        """See the class."""
        ...

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        """See the class."""
        ...

    async def identity(self) -> str:
        """See the class."""
        ...

    async def backlog(self) -> int:
        """See the class."""
        ...

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        progress_id: str = "",
    ) -> ToolOutcome:
        """``progress_id``: a name of the caller's choice for `progress`; empty if nobody wants to know."""
        ...

    async def progress(self, progress_id: str) -> Progress | None:
        """Waits for the next progress of a call that runs. None: the call has ended."""
        ...

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        """See the class."""
        ...

    async def stop(self, claim: Claim) -> None:
        """See the class."""
        ...


TOOL_SESSION = Service(
    ToolSessionService,
    {
        # `RemoteSession` bounds all of these by the server's own timeouts.
        ToolSessionService.catalogue: CallTerms(repeat_for_s=FOREVER),
        ToolSessionService.changed: CallTerms(repeat_for_s=FOREVER),
        ToolSessionService.identity: CallTerms(repeat_for_s=FOREVER),
        ToolSessionService.settle: CallTerms(repeat_for_s=FOREVER),
        ToolSessionService.stop: CallTerms(),  # the call of a session that is gone does not run
        ToolSessionService.backlog: CallTerms(),  # a session that is gone has no place for a call now
        ToolSessionService.call: CallTerms(cancels=True, end_within_s=1),  # not repeated: it may have run
        ToolSessionService.progress: CallTerms(),  # it ends with its call
    },
)
