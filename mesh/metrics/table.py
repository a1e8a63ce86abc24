"""The metrics of a mesh, by the names of OpenTelemetry's conventions for generative AI where there are any.

The labels of Prometheus have underscores where those conventions have dots. Every series also says which
agent (``gen_ai_agent_name``) and which keeper it is of.
"""

from mesh.metrics.meters import Metric

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
_APPEND = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TURN = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0)
_MODEL = "gen_ai_request_model"
_TOOL = "gen_ai_tool_name"

LLM_SECONDS = Metric(
    name="gen_ai_client_operation_duration_seconds",
    kind="histogram",
    help="How long model calls took, from the request to the last word of the answer.",
    labels=(_MODEL,),
    buckets=_SECONDS,
)
LLM_TOKENS = Metric(
    name="gen_ai_client_token_usage",
    kind="histogram",
    help="Tokens of model calls, of their input and of their output.",
    labels=(_MODEL, "gen_ai_token_type"),
    buckets=_TOKENS,
)
LLM_COST = Metric(
    name="mesh_llm_cost_usd_total",
    kind="counter",
    help="What model calls cost, in USD, by the prices of their moment, as far as these are known.",
    labels=(_MODEL,),
)
LLM_LOST = Metric(
    name="mesh_llm_calls_lost_total",
    kind="counter",
    help="Model calls under a budget whose process died, so that nobody knows what they cost.",
)
TURNS = Metric(
    name="mesh_turns_total",
    kind="counter",
    help="Turns that have ended: completed, limited (by a budget), stopped (by a person's no), cancelled, or "
    "failed.",
    labels=("outcome",),
)
TURN_SECONDS = Metric(
    name="mesh_turn_duration_seconds",
    kind="histogram",
    help="How long turns took from the message to their end, with what they waited for people.",
    labels=("outcome",),
    buckets=_TURN,
)
CONVERSATIONS = Metric(
    name="mesh_conversations_created_total", kind="counter", help="Conversations that have begun."
)
TOOL_CALLS = Metric(
    name="mesh_tool_calls_total",
    kind="counter",
    help="Tool calls by outcome: ok, error, skipped (a person decided so), or denied (by the policy).",
    labels=(_TOOL, "outcome"),
)
TOOL_SECONDS = Metric(
    name="mesh_tool_call_duration_seconds",
    kind="histogram",
    help="How long tool calls ran.",
    labels=(_TOOL,),
    buckets=_SECONDS,
)
APPROVALS_REQUIRED = Metric(
    name="mesh_approvals_required_total",
    kind="counter",
    help="Approvals that were asked for, by kind.",
    labels=("kind",),
)
APPROVALS_RESOLVED = Metric(
    name="mesh_approvals_resolved_total",
    kind="counter",
    help="Approvals that were decided, by decision.",
    labels=("decision",),
)
LIMITS_REACHED = Metric(
    name="mesh_limits_reached_total",
    kind="counter",
    help="Model calls that did not fit into a budget, by its limit.",
    labels=("limit",),
)
AGENTS_STARTED = Metric(
    name="mesh_agents_started_total",
    kind="counter",
    help="Agents that began below the root: called as tools, started, or items of a map.",
    labels=("by",),
)
STORE_LOSSES = Metric(
    name="mesh_store_losses_total",
    kind="counter",
    help="Conversations of which the store had lost something that it had acknowledged.",
)
APPEND_SECONDS = Metric(
    name="mesh_journal_append_duration_seconds",
    kind="histogram",
    help="How long the store took to make events durable.",
    buckets=_APPEND,
)
SHARDS_OPENED = Metric(
    name="mesh_shards_opened_total",
    kind="counter",
    help="Shards that a keeper has opened: at its start, received from another one, or taken over.",
)
SHARDS = Metric(name="mesh_shards", kind="gauge", help="Shards that are open at the keeper.")
SHARDS_WITHOUT_KEEPER = Metric(
    name="mesh_shards_without_keeper",
    kind="gauge",
    help="Shards that no keeper has, so that nothing of their conversations is answered.",
)
LOADED = Metric(
    name="mesh_conversations_loaded", kind="gauge", help="Conversations that the keeper has in memory."
)
OPEN_TURNS = Metric(name="mesh_turns_running", kind="gauge", help="Turns that the keeper is driving.")
WATCHED = Metric(
    name="mesh_conversations_watched",
    kind="gauge",
    help="Conversations of the keeper whose events are streamed to somebody.",
)
QUEUED_MESSAGES = Metric(
    name="mesh_messages_queued", kind="gauge", help="Messages that wait for the turn before them."
)
QUEUED_AGENTS = Metric(
    name="mesh_agents_queued",
    kind="gauge",
    help="Agents that have been started and wait until fewer of their turn are at work.",
)
STARTED = Metric(
    name="mesh_keeper_start_time_seconds",
    kind="gauge",
    help="When the process of the keeper began, in Unix time: a new value is a restart.",
)
OF_SHARD = (LOADED, OPEN_TURNS, WATCHED, QUEUED_MESSAGES, QUEUED_AGENTS)
"""The gauges that each shard has for itself, and a keeper with several of them the sums of."""
WAITING = Metric(
    name="mesh_conversations",
    kind="gauge",
    help="Conversations by status; those that wait for a person are waiting_approval.",
    labels=("status",),
)
WAITING_SINCE = Metric(
    name="mesh_approvals_waiting_since_timestamp_seconds",
    kind="gauge",
    help="When the approval was asked for that waits longest, in Unix time (PostgreSQL: of all keepers).",
)
KEEPERS_AWAY = Metric(
    name="mesh_keepers_away",
    kind="gauge",
    help="Keepers with a lease that did not say what they measured: their series are missing.",
)

ALL = (
    *(LLM_SECONDS, LLM_TOKENS, LLM_COST, LLM_LOST, TURNS, TURN_SECONDS, CONVERSATIONS, TOOL_CALLS),
    *(TOOL_SECONDS, APPROVALS_REQUIRED, APPROVALS_RESOLVED, LIMITS_REACHED, AGENTS_STARTED, STORE_LOSSES),
    *(APPEND_SECONDS, SHARDS_OPENED, SHARDS, SHARDS_WITHOUT_KEEPER, LOADED, OPEN_TURNS),
    *(WATCHED, QUEUED_MESSAGES, QUEUED_AGENTS, STARTED),
    *(WAITING, WAITING_SINCE, KEEPERS_AWAY),
)
