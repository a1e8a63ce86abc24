"""The keeper of one shard of an agent's conversations, as its config says it: in an actor, or in the process
of a chat."""

from collections.abc import Callable, Iterable, Iterator

from mesh.config.model import Config
from mesh.core.events import NEWS_ACTIONS, AnyEvent
from mesh.journal.port import Journal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.policy.book import GrantBook
from mesh.push.port import EventNotifications, PushStore
from mesh.push.sender import WebhookSender
from mesh.push.service import PushNotifications
from mesh.push.webhook import A2aVersion
from mesh.tree.configured_limits import limits_by_path, priced_models
from mesh.tree.gate import NewestPolicy
from mesh.tree.plan import infos_of_nodes, startable_agents, tree_of
from mesh.tree.turn import Tree


def agent_keeper(
    config: Config,
    shard: int,
    journal: Journal,
    tree: Tree,
    push_store: PushStore,
    sender: WebhookSender,
    book: GrantBook,
    on_fenced: Callable[[], None],
) -> Keeper:
    """The keeper of shard ``shard``. It does nothing before it is started."""
    settings = KeeperSettings(
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
        agents_at_once=config.limits.agents_at_once,
    )
    push = PushNotifications(
        shard, push_store, journal, sender, _render, config.card.push_hosts, on_fenced=on_fenced
    )
    newest = NewestPolicy(config).denial
    return Keeper(shard, config.cluster.keepers, journal, tree, settings, push, book, newest, on_fenced)


def _render(events: Iterable[AnyEvent], after: int, version: A2aVersion) -> Iterator[EventNotifications]:
    # Imported on first use: a keeper serves every protocol, and the types of A2A are a tenth of a second and
    # several MB that keepers without webhooks are spared.
    from mesh.a2a.server.notifications import notifications

    return notifications(events, after, version)
