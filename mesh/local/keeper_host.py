"""The keepers of an agent's conversations, as its config says it: in an actor, or in a chat's process.

A host has some of the shards (`mesh.journal.shards`). It renews its lease, claims what nobody has, gives away
what others should have, and answers calls for what it has:

    call ──► KeeperHost.call ──► keeper of the shard       NotHeld: another host has it
    renew ──► map ──► opens, drops, claims                 every two seconds
               └──► gives away, one shard after the other  beside that: no receiver delays a renewal
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from mesh.config.environment import Unchecked
from mesh.config.files import FileText
from mesh.config.kept_versions import Versions, kept_config
from mesh.config.model import Config
from mesh.core.errors import JournalError, MeshError, NotHeld, StaleEpoch, StoreAway, Unavailable
from mesh.core.events import NEWS_ACTIONS, AnyEvent
from mesh.core.ids import shard_of
from mesh.journal.shards import (
    ANSWERS_FOR,
    RENEW_EVERY_S,
    GivenShard,
    Handover,
    HostRecord,
    ShardClaim,
    ShardMap,
    after,
    claims,
    fair_share,
    handover,
)
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.recorder import KeeperRecorder
from mesh.keeper.retention import RetentionDays
from mesh.keeper.store_losses import AcknowledgedEnds
from mesh.metrics.meters import Meters, Metric, Series
from mesh.metrics.of_events import waiting_since
from mesh.metrics.table import OF_SHARD, SHARDS, SHARDS_OPENED, STARTED
from mesh.net.backoff import Backoff
from mesh.net.silent_peers import SilentPeers
from mesh.push.port import EventNotifications
from mesh.push.sender import WebhookSender
from mesh.push.service import PushNotifications
from mesh.push.webhook import A2aVersion
from mesh.runtime.logs import fields
from mesh.store.port import Store
from mesh.tracing.spans import Tracer
from mesh.tree.configured_limits import limits_by_path, priced_models
from mesh.tree.gate import NewestPolicy
from mesh.tree.plan import infos_of_nodes, startable_agents, tree_of
from mesh.tree.turn import Tree
from mesh.tree.version_bonds import NodeBond, bonds_of

if TYPE_CHECKING:
    from mesh.tracing.exporter import SpanExporter

_MOST_LOADED = 5_000
_MOST_RECOVERING = 256
"""The bounds of a process."""
_STARTING = Backoff(first_s=0.2, longest_s=5.0)
_CLOSE_WITHIN_S = 0.3
"""How long the end of a shard that is given away is waited for. A pass that must not be broken off in the
middle of a call ends later, by itself: the pass of the next keeper is told what comes of that call."""
LEAVE_WITHIN_S = 3.0
"""How long a host that leaves may give its shards away, where its machine is about to go."""
_RENEWED_WITHIN_S = 1.0
"""How long a renewal that is under way may take when a host leaves."""
_RECEIVED_WITHIN_S = 2.0
"""How long a giver waits for the shard to open elsewhere before it gives the next one."""
_OPEN_WITHIN_S = 10.0
"""How long a call waits for its shard to open; then its caller asks the store again who has it."""
_GIVEN_AGAIN = Backoff(first_s=5.0, longest_s=120.0)
"""How soon a host gets another shard after it did not take one."""
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_log = logging.getLogger("mesh.keeper")
T = TypeVar("T")


class OtherHosts(Protocol):
    """How a host reaches the others."""

    async def answers(self, host: HostRecord) -> None:
        """Returns soon if a host answers. Raises `Unavailable`."""
        ...

    async def give(self, to: HostRecord, given: GivenShard) -> bool:
        """Has another host receive a shard (`KeeperHost.receive`). Raises `MeshError` if it did not, or if
        nobody knows."""
        ...


class OpenShard:
    """A shard of this process: its keeper, and the same as a `Recorder`."""

    def __init__(self, keeper: Keeper, push: PushNotifications) -> None:
        self.keeper = keeper
        self.recorder = KeeperRecorder(lambda _: keeper)
        self.push = push


class _HeldShard:
    """A shard that this process has, while it opens and afterwards. ``tokens`` are those with which it is
    opened; ``opened`` is told which of the shards of this number it is."""

    def __init__(
        self, tokens: Mapping[str, str], opened: Callable[["_HeldShard"], Awaitable[OpenShard]]
    ) -> None:
        self._tokens = dict(tokens)
        self._calls: set[asyncio.Task[object]] = set()
        self._is_lost = False
        self._opening = asyncio.ensure_future(opened(self))

    async def opened(self) -> OpenShard:
        """Waits until it is open. Raises why it cannot be opened."""
        return await asyncio.shield(self._opening)

    async def settled(self, within_s: float | None = None) -> None:
        """Waits until it is open, or cannot be opened."""
        await asyncio.wait({self._opening}, timeout=within_s)

    async def _there(self) -> OpenShard:
        await self.settled(_OPEN_WITHIN_S)
        if not self._opening.done():
            raise NotHeld("the shard is not open yet")
        try:
            return await self.opened()
        except JournalError as problem:  # it is tried again with the next renewal
            raise Unavailable(f"the shard cannot be opened: {problem}") from None

    def now(self) -> OpenShard:
        """The shard, which is open."""
        return self._opening.result()

    async def call(self, work: Callable[[OpenShard], Awaitable[T]]) -> T:
        """Raises `NotHeld` if the shard is lost before the work has ended."""
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._calls.add(task)
        try:
            result = await work(await self._there())
        except asyncio.CancelledError:
            if self._is_lost and not task.uncancel():
                raise NotHeld("the shard has another host now") from None
            raise
        finally:
            self._calls.discard(task)
        if self._is_lost:
            raise NotHeld("the shard has another host now")
        return result

    def lose(self) -> None:
        """Breaks off the calls. From here on none is answered."""
        self._is_lost = True
        # Not the present one: it would be cancelled later, when it sends its answer.
        for task in self._calls - {asyncio.current_task()}:
            task.cancel()

    @property
    def is_open(self) -> bool:
        """Whether it could be opened."""
        return self._opening.done() and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """Whether it could not be opened."""
        return self._opening.done() and (self._opening.cancelled() or self._opening.exception() is not None)

    @property
    def tokens(self) -> Mapping[str, str]:
        """See `Keeper.tokens`."""
        return self.now().keeper.tokens() if self.is_open else self._tokens

    async def close(self) -> None:
        """Stops driving its turns."""
        self._opening.cancel()
        with suppress(asyncio.CancelledError, MeshError):  # what it was opened for does not matter any more
            await (await self._opening).keeper.close()


class KeeperHost:
    """The keepers of the shards that this process has. It does nothing before it is started. ``me`` is what
    other processes know of it, ``others`` how it reaches them, ``on_fenced`` is called when another process
    has taken a shard over without asking. ``meters`` are those of the process, if it has any already."""

    def __init__(
        self,
        config: Config,
        store: Store,
        tree: Tree,
        sender: WebhookSender,
        me: HostRecord,
        others: OtherHosts,
        on_fenced: Callable[[], None] = lambda: None,
        meters: Meters | None = None,
    ) -> None:
        self._config = config
        self._denial = NewestPolicy(config).denial
        self._store = store
        self._tree = tree
        self._sender = sender
        self._me = me
        self._others = others
        self._on_fenced = on_fenced
        self._held: dict[int, _HeldShard] = {}
        self._given: set[int] = set()
        """The shards that are being given away: they are this process's as the store has it, and not open."""
        self._tokens: dict[int, Mapping[str, str]] = {}
        """Those of shards that are to be opened again here, or for the first time."""
        self._silent: SilentPeers[str] = SilentPeers(_GIVEN_AGAIN, _now)
        self._map = ShardMap((), ())
        self._answers_until = float("-inf")
        self._moving = asyncio.Lock()
        """Held while what the store says of this process's shards is put into effect."""
        self._is_leaving = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._giving: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._recovering = asyncio.Semaphore(_MOST_RECOVERING)  # a bound of the process, for all its shards
        self._acknowledged = AcknowledgedEnds()
        self._meters = meters or Meters()
        self._started_at = int(time.time())
        self._spans = exporter_of(config)
        self._tracer = tracer_of(config, self._spans)
        self._timeline = ""  # of the store when it was last known to have all that it acknowledged

    async def start(self) -> None:
        """Takes its share of the shards, and goes on with their open turns. Waits while the store does not
        answer. Raises `MeshError` if a shard cannot be opened."""
        await _done_when_there(self._renew)
        opening = dict(self._held)
        self._renewing = asyncio.create_task(self._keep_renewing())  # to open them may take long
        for shard, held in opening.items():
            await held.settled()
            if self._held.get(shard) is held:  # and was not given away meanwhile
                await held.opened()

    async def call(self, shard: int, work: Callable[[OpenShard], Awaitable[T]]) -> T:
        """Has the keeper of a shard do something. Raises `NotHeld`, also if the shard is lost meanwhile: then
        it may have been done."""
        held = self._held.get(shard)
        if held is None:
            raise NotHeld(f"shard {shard} is not here")
        self._check_lease()
        result = await held.call(work)
        self._check_lease()  # what was read may have been changed by another host since
        return result

    async def metrics(self) -> list[Series]:
        """What was measured here, and how much is here."""
        # A store that has a listing is asked once, for all hosts.
        listed = self._open_keepers() if self._store.listing() is None else []
        waiting = waiting_since([await keeper.waiting_since() for keeper in listed])
        here = [Series(metric.name, (), now) for metric, now in self.gauges().items()]
        return [*self._meters.series(), *here, *waiting]

    def gauges(self) -> dict[Metric, int]:
        """How much is here now."""
        keepers = self._open_keepers()
        gauges = Counter({SHARDS: len(keepers), STARTED: self._started_at, **dict.fromkeys(OF_SHARD, 0)})
        for keeper in keepers:
            gauges.update(keeper.gauges())
        return gauges

    def _open_keepers(self) -> list[Keeper]:
        return [held.now().keeper for held in self._held.values() if held.is_open]

    def keeper(self, shard: int) -> Keeper:
        """The keeper of a shard that is open here, and stays."""
        return self._held[shard].now().keeper

    async def receive(self, given: GivenShard) -> bool:
        """Takes over a shard that another host gives away, and returns when it is open or takes long to open.
        False: somebody else has it. Raises `Unavailable`."""
        shard = given.shard
        async with self._moving:
            if self._is_leaving.is_set():
                return False
            self._acknowledged.take(given.ends)  # before the store may give it this shard
            try:
                if not await self._store.shards.claim([ShardClaim(shard, given.giver)], self._me.id):
                    return False
            except JournalError as problem:
                self._tokens[shard] = given.tokens  # the store may have done it all the same
                raise Unavailable(f"shard {shard} cannot be taken over: {problem}") from None
            if self._is_leaving.is_set():  # what it has then is given back to all
                raise Unavailable(f"shard {shard} is not taken over: this host leaves")
            self._tokens[shard] = given.tokens
            self._have(shard)
        await self._held[shard].settled(_RECEIVED_WITHIN_S)
        return True

    async def leave(self, *, whole_generation: bool = False, within_s: float = LEAVE_WITHIN_S) -> None:
        """Gives all shards to other hosts, as far as there are any and for at most so long, and closes.
        ``whole_generation``: the other hosts of the same deployment leave, too."""
        try:
            await self._stop_renewing()
            self._me = replace(self._me, is_leaving=True)
            map = await self._store.shards.renew(self._me)
            if whole_generation:
                staying = (each for each in map.hosts if each.generation != self._me.generation)
                map = replace(map, hosts=(*staying, self._me))
            self._map = map
            async with asyncio.timeout(within_s):
                await self._give_all_away()
        except (JournalError, TimeoutError) as problem:
            why = str(problem) or f"others did not take all within {within_s:g} s"
            _log.warning("event=left_with_shards %s", fields(message=why))
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops driving turns (they stay open) and writes what is only derived. Others may claim the
        shards."""
        await self._stop_renewing()
        for shard in list(self._held):
            self._drop(shard)
        if self._closing:
            await asyncio.wait(self._closing, timeout=LEAVE_WITHIN_S)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        with suppress(JournalError):  # then its lease ends by itself
            await self._store.shards.release(self._me.id)

    async def _stop_renewing(self) -> None:
        """Lets a renewal and a handover that are under way end, for a while: the store may do what it was
        asked after all."""
        self._is_leaving.set()
        await _ended(self._renewing, _RENEWED_WITHIN_S)
        await _ended(self._giving, _CLOSE_WITHIN_S + _RECEIVED_WITHIN_S)
        await _ended(self._looking, 0)

    async def _keep_renewing(self) -> None:
        while not self._is_leaving.is_set():
            begun = time.monotonic()
            try:
                await self._renew()
                if self._giving is None or self._giving.done():
                    self._giving = asyncio.create_task(self._give_away())
                if self._looking is None or self._looking.done():
                    self._looking = asyncio.create_task(self._look_for_losses())
            except JournalError as problem:
                _log.warning("event=not_renewed %s", fields(message=problem))
            except Exception:  # noqa: BLE001 - a defect in one round must not end all of them
                _log.exception("event=renewal_failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(begun + self._pause_s() - time.monotonic()):
                    await self._is_leaving.wait()

    async def _look_for_losses(self) -> None:
        """After the store failed over to a standby, which may not have what was acknowledged last. A shard
        that opens looks at each conversation when that is needed."""
        timeline = self._map.timeline
        try:
            if timeline and self._timeline and timeline != self._timeline:
                _log.warning("event=store_failed_over timeline=%s before=%s", timeline, self._timeline)
                for held in [*self._held.values()]:
                    if held.is_open:
                        await held.now().keeper.look_for_losses()
        except JournalError as problem:  # the next renewal begins with that again
            _log.warning("event=losses_not_known %s", fields(message=problem))
        else:
            self._timeline = timeline or self._timeline

    def _pause_s(self) -> float:
        """Until the next renewal: less if the lease of another host ends before."""
        ends = [h.expires_in_s for h in self._map.hosts if h.id != self._me.id and h.is_live]
        return min([RENEW_EVERY_S, *(end + 0.1 for end in ends)])

    async def _renew(self) -> None:
        """Renews the lease, and makes the shards of this process those of the map."""
        async with self._moving:
            sent = _now()
            map = self._map = await self._store.shards.renew(self._me)
            self._answers_until = sent + self._store.shards.lease_s * ANSWERS_FOR
            self._silent.forget_except({host.id for host in map.hosts})
            mine = set(map.shards_of(self._me.id))
            for shard in self._held.keys() - mine:
                _log.warning("event=shard_lost shard=%d", shard)
                self._drop(shard)
            self._tokens = {shard: tokens for shard, tokens in self._tokens.items() if shard in mine}
            for shard in mine - self._given:
                self._have(shard)
            if wanted := claims(map, self._me.id):
                for shard in await self._store.shards.claim(wanted, self._me.id):
                    self._have(shard)

    async def _give_away(self) -> None:
        """Gives away what other hosts should have, one shard after the other, as long as this host stays."""
        while not self._is_leaving.is_set():
            move = handover(self._map, self._me.id, self._held.keys(), self._silent.ids())
            if move is None or not await self._moved(move):
                return

    async def _give_all_away(self) -> None:
        """As `_give_away`, for a host that leaves. Whoever did not take a shard before is asked once more."""
        asked: SilentPeers[str] = SilentPeers(_GIVEN_AGAIN, _now)
        self._silent = asked
        while move := handover(self._map, self._me.id, self._held.keys(), asked.ids()):
            await self._moved(move)

    async def _moved(self, move: Handover) -> bool:
        """Gives a shard away. False: the map is outdated."""
        try:
            await self._others.answers(move.to)
            was_given = await self._was_given(move)
        except MeshError as problem:  # whether it has the shard is seen with the next map
            _log.warning("event=shard_not_given shard=%d %s", move.shard, fields(message=problem))
            self._silent.note(move.to.id)
            return True
        _log.info("event=shard_given shard=%d to=%s given=%s", move.shard, move.to.name, was_given)
        self._silent.forget(move.to.id)
        return was_given

    async def _was_given(self, move: Handover) -> bool:
        """Raises `MeshError`."""
        shard = move.shard
        held = self._held.pop(shard, None)
        if held is None:
            return False  # it was lost while the other host was asked
        self._given.add(shard)
        tokens = self._tokens[shard] = dict(held.tokens)
        held.lose()
        await self._closed(held)
        was_given, shards = False, len(self._map.held_by)
        try:
            ends = self._acknowledged.known(lambda id: shard_of(id, shards) == shard)
            was_given = await self._others.give(move.to, GivenShard(shard, self._me.id, tokens, ends))
        finally:
            # After a renewal under way: its map may be from before, and the shard must not be opened with it.
            async with self._moving:
                self._given.discard(shard)
                if was_given:
                    self._map = after(self._map, move)
                    # From here on another host writes there, and knows what was deleted.
                    self._acknowledged.forget_all(lambda id: shard_of(id, shards) == shard)
        return was_given

    def _have(self, shard: int) -> None:
        """Opens a shard, unless it is open, or opens, already."""
        before = self._held.get(shard)
        if before is not None and not before.has_failed:
            self._tokens.pop(shard, None)  # it has newer ones
            return
        tokens = {**(before.tokens if before else {}), **self._tokens.pop(shard, {})}
        self._held[shard] = _HeldShard(tokens, lambda held: self._opened(shard, held, tokens))

    async def _opened(self, shard: int, held: _HeldShard, tokens: Mapping[str, str]) -> OpenShard:
        """Waits while the store does not answer. Raises `MeshError`."""
        settings = _settings_of(self._config, fair_share(self._map))
        for delay in _STARTING.delays():
            opened = self._made(shard, held, settings)
            try:
                await opened.keeper.start(tokens)
            except (StoreAway, StaleEpoch) as problem:
                _log.warning("event=store_away shard=%d %s", shard, fields(message=problem))
                await opened.keeper.close()
                await asyncio.sleep(delay)
            except BaseException as problem:
                if isinstance(problem, MeshError):
                    _log.error("event=shard_not_opened shard=%d %s", shard, fields(message=problem))
                await opened.keeper.close()
                raise
            else:
                self._meters.add(SHARDS_OPENED)
                return opened
        raise AssertionError("delays are without end")

    def _drop(self, shard: int) -> None:
        """Lets go of a shard that another host has."""
        held = self._held.pop(shard, None)
        if held is not None:
            held.lose()
            self._end(held)

    def _end(self, held: _HeldShard) -> "asyncio.Task[None]":
        ending = asyncio.create_task(held.close())
        self._closing.add(ending)
        ending.add_done_callback(self._closing.discard)
        return ending

    async def _closed(self, held: _HeldShard) -> None:
        await asyncio.wait({self._end(held)}, timeout=_CLOSE_WITHIN_S)

    def _fenced(self, shard: int, held: _HeldShard) -> None:
        if self._held.get(shard) is held:  # and not another one since
            _log.error("event=fenced shard=%d", shard)
            self._tokens[shard] = dict(held.tokens)  # if it is still this host's, it is opened again
            self._drop(shard)
            self._on_fenced()

    def _check_lease(self) -> None:
        if _now() > self._answers_until:
            raise NotHeld("the store has not answered this host for so long that others may have its shards")

    def _made(self, number: int, held: _HeldShard, settings: KeeperSettings) -> OpenShard:
        """The keeper of a shard, which is not open yet."""
        store = self._store

        def on_fenced() -> None:
            self._fenced(number, held)

        push = PushNotifications(
            number,
            store.push,
            store.journal,
            self._sender,
            _render,
            self._config.card.push_hosts,
            on_fenced=on_fenced,
            count=self._webhooks,
        )
        keeper = Keeper(
            number,
            len(self._map.held_by),
            store.journal,
            self._tree,
            settings,
            push,
            store.grants,
            self._denial,
            self._bonds_of,
            on_fenced,
            store.listing(number),
            self._recovering,
            self._acknowledged,
            self._meters,
            self._tracer,
        )
        return OpenShard(keeper, push)

    async def _bonds_of(self, version: str, must_run: bool) -> dict[str, NodeBond]:
        """See `mesh.keeper.version_moves.BondsOf`."""
        if version == self._config.digest:
            return bonds_of(self._config)
        env = os.environ if must_run else Unchecked(os.environ)
        return bonds_of(await kept_config(self._store.versions, version, env))

    def _webhooks(self) -> int:
        """How many webhooks there are in this process."""
        return sum(held.now().push.count() for held in self._held.values() if held.is_open)


def exporter_of(config: Config) -> "SpanExporter | None":
    """What sends spans to the collector that a config names; None if it names none."""
    if config.otel is None:
        return None
    # Imported here: it is an extra, and costs what an agent without traces is spared.
    from mesh.tracing.exporter import SpanExporter

    return SpanExporter(config.otel.endpoint, config.otel.headers, config.name, version("mesh"))


def tracer_of(config: Config, spans: "SpanExporter | None") -> Tracer | None:
    """What makes spans, as a config has it; None if nobody wants any."""
    if config.otel is None or spans is None:
        return None
    return Tracer(spans.send, config.otel.sample, with_contents=config.otel.contents)


def _now() -> float:
    """The time in seconds of a clock that goes on while the machine sleeps, where there is one: its lease
    ends meanwhile."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


async def _ended(task: asyncio.Task[None] | None, within_s: float) -> None:
    """Waits a while for a task to end, and breaks it off then."""
    if task is not None:
        await asyncio.wait({task}, timeout=within_s)
        task.cancel()
        await asyncio.wait({task})


async def kept_when_there(
    versions: Versions, digest: str, source: str, files: Mapping[str, FileText]
) -> None:
    """Keeps a version; waits while the store does not answer. Raises `MeshError`."""
    await _done_when_there(lambda: versions.keep(digest, source, files))


async def _done_when_there(work: Callable[[], Awaitable[None]]) -> None:
    """Does something with the store; again while that does not answer."""
    for delay in _STARTING.delays():
        try:
            await work()
        except StoreAway as problem:
            _log.warning("event=store_away %s", fields(message=problem))
            await asyncio.sleep(delay)
        else:
            return


def _settings_of(config: Config, share: int) -> KeeperSettings:
    """What a keeper needs to know of an agent. ``share`` keepers are in its process."""
    return KeeperSettings(
        agent=config.name,
        digest=config.digest,
        pins_versions=config.versions == "pinned",
        root=config.tree.name,
        root_kind=config.tree.type,
        intervene=NEWS_ACTIONS if config.intervene is None else config.intervene,
        models=priced_models(config),
        startable=startable_agents(config),
        nodes=infos_of_nodes(config),
        limits=limits_by_path(config),
        system_prompt=tree_of(config).prompt or config.prompt,
        turn_timeout_s=config.limits.turn_timeout_s,
        max_queue_per_conversation=config.limits.max_queue_per_conversation,
        max_loaded=max(1, _MOST_LOADED // share),
        agents_at_once=config.limits.agents_at_once,
        retention=RetentionDays(config.retention.completed_days, config.retention.idle_days),
    )


def _render(events: Iterable[AnyEvent], after: int, version: A2aVersion) -> Iterator[EventNotifications]:
    # Imported on first use: a keeper serves every protocol, and the types of A2A are a tenth of a second and
    # several MB that keepers without webhooks are spared.
    from mesh.a2a.server.notifications import notifications

    return notifications(events, after, version)
