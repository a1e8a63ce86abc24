"""The keepers of an agent's conversations, as its config says it: in an actor, or in a chat's process."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mesh.config.files import FileText
from mesh.config.kept_versions import Versions
from mesh.config.model import Config
from mesh.core.errors import StaleEpoch, StoreAway
from mesh.core.events import NEWS_ACTIONS, AnyEvent
from mesh.core.ids import shard_of
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.net.backoff import Backoff
from mesh.push.port import EventNotifications
from mesh.push.sender import WebhookSender
from mesh.push.service import PushNotifications
from mesh.push.webhook import A2aVersion
from mesh.runtime.logs import fields
from mesh.store.chosen import shards_of
from mesh.store.port import Store
from mesh.tree.configured_limits import limits_by_path, priced_models
from mesh.tree.gate import NewestPolicy
from mesh.tree.plan import infos_of_nodes, startable_agents, tree_of
from mesh.tree.turn import Tree

_MOST_LOADED = 5_000
_MOST_RECOVERING = 256
"""The bounds of a process."""
_STARTING = Backoff(first_s=0.2, longest_s=5.0)
_log = logging.getLogger("mesh.keeper")


class KeeperHost:
    """The keepers of the shards ``numbers`` of an agent, all in this process. It does nothing before it is
    started. ``on_fenced`` is called when another process has taken one of them over."""

    def __init__(
        self,
        config: Config,
        numbers: Sequence[int],
        store: Store,
        tree: Tree,
        sender: WebhookSender,
        on_fenced: Callable[[], None],
    ) -> None:
        self.shards = shards_of(config)
        self._config = config
        self._settings = _settings_of(config, len(numbers))
        self._denial = NewestPolicy(config).denial
        self._numbers = numbers
        self._store = store
        self._tree = tree
        self._sender = sender
        self._on_fenced = on_fenced
        self._keepers: dict[int, Keeper] = {}
        # Bounds of the process, which its shards share.
        self._recovering = asyncio.Semaphore(_MOST_RECOVERING)
        self._pushes: dict[int, PushNotifications] = {}

    async def start(self) -> None:
        """Takes the shards over, and goes on with their open turns. Waits while the store does not answer."""
        takes = [asyncio.create_task(self._take(number)) for number in self._numbers]
        try:
            await asyncio.gather(*takes)
        except BaseException:  # what was taken is closed by `close`; nothing more is taken
            for take in takes:
                take.cancel()
            await asyncio.gather(*takes, return_exceptions=True)
            raise

    def shard(self, number: int) -> Keeper:
        """The keeper of one of the shards."""
        return self._keepers[number]

    def of(self, owner: str) -> Keeper:
        """The keeper of a conversation or an approval, which is in one of the shards."""
        return self._keepers[shard_of(owner, self.shards)]

    async def close(self) -> None:
        """Stops driving turns (they stay open) and writes what is only derived."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))

    async def _take(self, number: int) -> None:
        for delay in _STARTING.delays():
            keeper = self._keeper(number)
            try:
                await keeper.start()
            except (StoreAway, StaleEpoch) as problem:
                _log.warning("event=store_away shard=%d %s", number, fields(message=problem))
                await keeper.close()
                await asyncio.sleep(delay)
            except BaseException:
                await keeper.close()
                raise
            else:
                self._keepers[number] = keeper
                return

    def _keeper(self, number: int) -> Keeper:
        store = self._store
        push = PushNotifications(
            number,
            store.push,
            store.journal,
            self._sender,
            _render,
            self._config.card.push_hosts,
            on_fenced=self._on_fenced,
            count=self._webhooks,
        )
        self._pushes[number] = push
        return Keeper(
            number,
            self.shards,
            store.journal,
            self._tree,
            self._settings,
            push,
            store.grants,
            self._denial,
            self._on_fenced,
            store.listing(number),
            self._recovering,
        )

    def _webhooks(self) -> int:
        """How many webhooks there are in this process."""
        return sum(push.count() for push in self._pushes.values())


async def kept_when_there(
    versions: Versions, digest: str, source: str, files: Mapping[str, FileText]
) -> None:
    """Keeps a version; waits while the store does not answer. Raises `MeshError`."""
    for delay in _STARTING.delays():
        try:
            await versions.keep(digest, source, files)
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
    )


def _render(events: Iterable[AnyEvent], after: int, version: A2aVersion) -> Iterator[EventNotifications]:
    # Imported on first use: a keeper serves every protocol, and the types of A2A are a tenth of a second and
    # several MB that keepers without webhooks are spared.
    from mesh.a2a.server.notifications import notifications

    return notifications(events, after, version)
