"""What `agent.yaml` may contain: the models, their defaults and bounds.

    text ── yaml_tree ─────► nodes with line numbers
         ── environment ───► plain data, variables substituted
         ── files ─────────► the texts of the files that it names in their place
         ── cross_checks ──► problems between keys
         ── the models ────► problems of single keys
         ──► `Config`, or one `ConfigError` with every problem

Times are in seconds, sizes in bytes. A problem never repeats a value, because the value may be a secret.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from mesh.config.cross_checks import MAX_TREE_DEPTH, MAX_TREE_NODES, cross_checks
from mesh.config.files import Files, FileText, MadeFrom, resolve
from mesh.config.policy import NodePolicyOptions, PolicyOptions
from mesh.config.problem_texts import spelled
from mesh.config.read_model import Problem, read_model, told
from mesh.config.section import ConfigSection
from mesh.config.values import (
    ApiKey,
    Bytes,
    Count,
    DatabaseUrl,
    Directory,
    HostName,
    Identifier,
    Many,
    Name,
    Network,
    Origin,
    Seconds,
    SecurityScheme,
    Text,
    Tokens,
    ToolName,
    Url,
    Usd,
)
from mesh.config.workspace_variable import workspace_of
from mesh.config.yaml_tree import Loc, YamlNode, canonical, read_text
from mesh.core.events import NewsAction
from mesh.core.hints import Unannotated

DEFAULT_MODEL = "gemini-2.5-flash"
DEPLOYMENT_KEYS = (
    "host",
    "port",
    "allowed_hosts",
    "cors",
    "auth",
    "data_dir",
    "store",
    "retention",
    "otel",
    "versions",
    "promote",
    "cluster",
    "card",
)
"""Keys that say where an agent runs, not what it is. They do not change the digest, nor does
``llm.prices``."""

OWN_SERVERS = ("mcp-filesystem", "mcp-shell", "mcp-resources")
"""The programs of tool servers that come with mesh."""
Resources = dict[Text, Annotated[float, Field(ge=0)]]


def _as_none(value: Any) -> Any:
    """``auto`` in a config is None here: as many as there are machines."""
    return None if value == "auto" else value


NodeType = Literal["llm", "sequential", "parallel", "loop", "map", "a2a", "tool", "agent"]


class ModelPrice(ConfigSection):
    """The price of a model in USD per million tokens. ``cached`` applies to input that the provider read from
    its cache; None means the price of ``input``."""

    input: Usd
    output: Usd
    cached: Usd | None = None


class LlmOptions(ConfigSection):
    """The model that answers, where a node names no other.

    ``max_tokens`` None leaves the bound to the provider (4096 for Claude). ``timeout_s`` bounds each request
    to the provider. ``prices`` replace the list prices, by model; a name without its date or provider
    stands for all of them. Budgets reserve and count at these prices.
    """

    model: Text = DEFAULT_MODEL
    max_tokens: Tokens | None = None
    timeout_s: Seconds = 60
    prices: dict[Text, ModelPrice] = {}


class ModelParameters(ConfigSection):
    """What an llm node asks of its model. None leaves it to the provider; ``max_tokens`` None means that of
    `LlmOptions`. `mesh.llm.config_checks` says which provider takes what."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Tokens | None = None
    stop: Annotated[Many[Text], Field(max_length=4)] = ()
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    effort: Literal["low", "medium", "high"] | None = None


class ServerOptions(ConfigSection):
    """An MCP server in a subprocess, and the bounds of its session.

    ``replicas`` is the number of processes, each with a session of its own. ``unannotated`` says whether a
    tool without hints needs an approval. ``timeout_s`` bounds a call, ``start_timeout_s`` the start of the
    session, ``max_result_bytes`` one result. The server gets ``env``, and of the mesh's own environment only
    HOME, LOGNAME, PATH, SHELL, TERM and USER, which ``env`` may override. ``believe_checks``: what it says in
    ``_meta`` of its checks counts (`mesh.mcp.outcome_checks`). ``trust``: what it says there of the arguments
    of its tools counts, by which rules about paths and commands hold (`mesh.mcp.meta`). ``labels`` are those
    of the machines on which its sessions may be, as Ray selects them. ``previews`` are, by the names of
    tools, the added arguments with which a call changes nothing and says what it would do.
    """

    command: Text | None = None
    args: list[str] = []
    env: dict[Text, str] = {}
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    unannotated: Unannotated = "ask"
    timeout_s: Seconds = 60
    start_timeout_s: Seconds = 30
    max_result_bytes: Bytes = 1024 * 1024
    believe_checks: bool = False
    trust: bool = False
    resources: Resources = {}
    labels: dict[Text, Text] = {}
    previews: dict[Text, dict[str, Any]] = {}

    @property
    def is_trusted(self) -> bool:
        """Whether what the server says in ``_meta["mesh"]`` counts. Our own servers need no ``trust``."""
        return self.trust or (self.command or "").rpartition("/")[2] in OWN_SERVERS

    @property
    def believes_checks(self) -> bool:
        """Whether what the server says of its checks counts."""
        return self.believe_checks

    @property
    def tells_truth(self) -> bool:
        """Whether a truth value that it returns is told from a text that reads like one."""
        return False


class PythonFile(ConfigSection):
    """A Python file: its path as the config says it, its absolute path on the machine that read it, and its
    text."""

    file: Text
    path: Text
    code: str


class McpServer(ServerOptions):
    """An MCP server: a subprocess that speaks stdio (``command``), Streamable HTTP (``url``), or a file of
    tools (``python``), which is served in a subprocess. In the file of the config ``python`` is a path."""

    name: Name
    url: Url | None = None
    python: PythonFile | None = None
    headers: dict[Text, str] = {}

    @property
    def believes_checks(self) -> bool:
        return self.believe_checks or self.python is not None

    @property
    def tells_truth(self) -> bool:
        return self.python is not None

    @property
    def is_trusted(self) -> bool:
        return super().is_trusted or self.python is not None


class A2aAgent(ConfigSection):
    """Another agent, offered to the model as the tool ``a2a_<name>``.

    With ``destructiveHint: true`` each message needs an approval. With an explicit ``false`` a message that
    is answered with HTTP 500 has failed; otherwise its outcome counts as unknown, and a person is asked.
    ``card_url`` None means the well-known location. ``key`` is an API key of the agent's mesh; it is sent as
    X-API-Key, and only to the origin of ``url``.
    """

    name: Name
    url: Url
    key: ApiKey = ""
    description: str = ""
    destructive: bool = Field(default=False, alias="destructiveHint")
    timeout_s: Seconds = 60
    card_url: Url | None = None

    @property
    def is_harmless(self) -> bool:
        """Whether the config says ``destructiveHint: false``, rather than nothing."""
        return "destructive" in self.model_fields_set and not self.destructive


class Budget(ConfigSection):
    """What one run of a node and everything below it may use; None for no limit. ``max_time_s`` does not
    count the time in which people are waited for. ``max_agents`` counts the agents that are started in it,
    over its life; with None a started agent may have `OF_STARTED_AGENT`, a turn `OF_TURN`
    (`mesh.core.agent_limits`)."""

    max_cost_usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    max_total_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    max_llm_calls: Count | None = None
    max_time_s: Seconds | None = None
    max_agents: Count | None = None


class TurnBudget(Budget):
    """What one turn may use, and what happens at a limit, of whichever node: ``answer`` makes one last model
    call without tools, ``stop`` returns what is there, ``fail`` fails, ``ask`` asks a person for as much
    again. At ``warn_at`` of a limit the model is told once. ``max_conversation_cost_usd`` bounds all turns
    together. ``max_depth`` bounds how many agents call each other, the root agent included, with or without
    limits. ``unpriced_peers``: whether other agents that do not say what they cost may be asked under a money
    limit."""

    max_conversation_cost_usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    max_depth: Annotated[int, Field(ge=1, le=20)] = 5
    on_limit: Literal["answer", "stop", "fail", "ask"] = "answer"
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    unpriced_peers: Literal["allow", "refuse"] = "allow"


class ExitCondition(ConfigSection):
    """What says, after each iteration of a loop, whether that was the last: a ``check`` (a function or a
    read-only tool), a ``schema`` that the response fits, or an ``agent``; one of them."""

    check: ToolName | None = None
    accepted: dict[str, Any] | None = Field(default=None, alias="schema")
    agent: Name | None = None


class Validator(ConfigSection):
    """What checks an answer: a ``check`` (a function or a read-only tool), an ``agent``, or a ``person``; one
    of them."""

    check: ToolName | None = None
    agent: Name | None = None
    person: Literal[True] | None = None


class Spawn(ConfigSection):
    """What an llm node may start, to work beside it: its ``agents``, by the tool ``spawn``, and with ``fork``
    copies of itself, by the tool ``fork``. With ``review`` ask, a person agrees to each of these calls first.
    ``unwaited`` says what becomes of agents that still work when the model answers in text: they are waited
    for and reported to it, or deleted."""

    fork: bool = False
    review: Literal["none", "ask"] = "none"
    unwaited: Literal["report", "delete"] = "report"


class Questions(ConfigSection):
    """What an llm node may ask the person, by the tool ``ask_user``: ``at_most`` so many questions in one run
    of the node. With ``declined``, who rejects a question without a reason ends the turn, with this text as
    its answer; otherwise that cancels the turn."""

    at_most: Annotated[int, Field(ge=1, le=100)] | None = None
    declined: str = ""


def _questions_in(value: Any) -> Any:
    """``true`` is short for questions without a bound, ``false`` for none."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class AgentNode(ConfigSection):
    """A node of the agent's tree, or an agent that others may call. `mesh.config.cross_checks` says which key
    goes with which type.

    ``agents`` are the children of a sequential, parallel or loop node, and the one child of a map. Those of
    an llm node are the agents that it may call: names of `Config.agents` (a name is short for a node of type
    ``agent``), or nodes that are written here. ``input_schema`` is what a caller has to give to an agent;
    None means a ``task``.
    ``offer_agents`` offers each agent as a tool of its own, or one tool ``use_agent`` for all.
    ``spawn`` lets it start them, to work beside it. ``python`` gives it the tool ``python``, which runs code
    in a sandbox.
    ``can_complete_task`` and ``can_return_to_user`` give it the tools ``complete_task`` and
    ``return_to_user``. ``budget`` bounds one run of it and everything below it. ``destructive``: a person is
    asked before each message to the agent of an a2a node, and before an agent that can be called starts.

    The answer of an llm node has to fit ``output_schema`` and to pass the ``validate`` list, in its order.
    The first validator that objects speaks to the model, which answers again, at most ``max_runs`` times in
    all; then ``on_invalid`` says what follows: the node fails, the answer is accepted and marked, or a person
    is asked. With ``show_drafts`` clients see answers before they have passed. ``exit_when`` ends a loop
    after an iteration.

    A map runs its child once for each item of the list that ``over`` names, a key of the session state, all
    at the same time, and fails if there are more than ``most``; ``with_status``, its answer says of each item
    how it ended. ``on_error`` says whether it, or a parallel node, fails with a child or goes on without it.

    ``prompt`` may contain ``{placeholders}``. ``tools`` are names or globs; None means all tools.
    ``tool`` is what a tool node calls, with ``args``, in which texts may contain ``{placeholders}``.
    ``can_ask_user`` gives it the tool ``ask_user``. ``approvals`` says whether destructive tools below a
    parallel, a loop or a map ask first or run at once (``inline``). None is ``ask`` for a map. For the others
    it inherits from the nearest of these around the node, and is ``inline`` where there is none, but ``ask``
    in an agent that checks answers.
    ``policy`` tightens that of the agent, here and below. ``replicas`` is the number of actors; with 0 an
    actor is made on the first use; None (in a config, ``auto``) is one on each machine. ``resources`` are
    what each of them requests of Ray, such as ``num_cpus``. ``timeout_s`` None means that only the turn's own
    bound applies.
    """

    name: Name
    type: NodeType
    description: str = ""
    agents: "Many[AgentNode]" = ()
    model: Text | None = None
    parameters: ModelParameters = ModelParameters()
    prompt: str = ""
    output_key: Identifier | None = None
    output_schema: dict[str, Any] | None = None
    validators: Many[Validator] = Field(default=(), alias="validate")
    max_runs: Annotated[int, Field(ge=1, le=20)] = 3
    on_invalid: Literal["fail", "accept", "ask"] = "fail"
    show_drafts: bool = False
    can_exit_loop: bool = False
    can_ask_user: Annotated[Questions | None, BeforeValidator(_questions_in)] = None
    can_complete_task: bool = False
    can_return_to_user: bool = False
    offer_agents: Literal["tools", "use_agent"] = "tools"
    spawn: Spawn | None = None
    python: bool = False
    input_schema: dict[str, Any] | None = None
    budget: Budget = Budget()
    max_iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    exit_when: ExitCondition | None = None
    over: Identifier | None = None
    most: Annotated[int, Field(ge=1, le=10_000)] = 100
    with_status: bool = False
    url: Url | None = None
    key: ApiKey = ""
    card_url: Url | None = None
    destructive: bool = Field(default=False, alias="destructiveHint")
    a2a: Many[A2aAgent] = ()
    tools: Many[Text] | None = None
    tool: ToolName | None = None
    args: dict[str, Any] = {}
    approvals: Literal["inline", "ask"] | None = None
    policy: NodePolicyOptions | None = None
    on_error: Literal["fail", "continue"] = "fail"
    replicas: Annotated[Annotated[int, Field(ge=0, le=1000)] | None, BeforeValidator(_as_none)] = 1
    resources: Resources = {}
    timeout_s: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return {"name": data, "type": "agent"} if isinstance(data, str) else data

    @property
    def children(self) -> "tuple[AgentNode, ...]":
        """The nodes that run as a part of this one."""
        return () if self.type == "llm" else self.agents

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the agents of the config that it may call: as tools, or to check answers."""
        own = [agent.name for agent in self.agents] if self.type == "llm" else []
        return (*dict.fromkeys([*own, *(each.agent for each in self.conditions if each.agent)]),)

    @property
    def conditions(self) -> "tuple[Validator | ExitCondition, ...]":
        """What checks its answers, or ends it."""
        return (*self.validators, *((self.exit_when,) if self.exit_when else ()))

    def named_conditions(self, loc: Loc, kind: Literal["check", "agent"]) -> Iterator[tuple[Loc, str]]:
        """Yields the name of each function, or agent, among them, with its location. ``loc`` is that of the
        node."""
        places: list[Loc] = [("validate", index) for index in range(len(self.validators))]
        for at, each in zip((*places, ("exit_when",)), self.conditions, strict=False):
            if name := getattr(each, kind):
                yield (*loc, *at, kind), name

    @property
    def is_checked(self) -> bool:
        """Whether its answers are checked before they count."""
        return self.output_schema is not None or bool(self.validators)

    def as_agent(self) -> A2aAgent:
        """Returns the other agent that a node of type a2a hands its work to."""
        assert self.url is not None  # checked by `mesh.config.cross_checks`
        more: dict[str, Any] = {} if self.timeout_s is None else {"timeout_s": self.timeout_s}
        if "destructive" in self.model_fields_set:  # see `A2aAgent.is_harmless`
            more["destructiveHint"] = self.destructive
        return A2aAgent(
            name=self.name,
            url=self.url,
            key=self.key,
            card_url=self.card_url,
            description=self.description,
            **more,
        )


class Limits(ConfigSection):
    """Bounds that hold whatever a model, a server or a client does.

    - ``max_tool_iterations``: model calls of one llm node until it has its answer, unless its budget has
      ``max_llm_calls``. Each iteration of a loop counts anew.
    - ``max_llm_calls``: model calls of a turn, over all its nodes, iterations and pauses. Branches of a
      parallel node may exceed it by the calls that are under way when it is reached.
    - ``max_tool_calls``: tool calls in one answer of a model. ``max_parallel_calls``: those of one answer
      that run at the same time.
    - ``max_tools_bytes``: names, descriptions and schemas of the tools that one node shows its model.
    - ``max_body_bytes``: an HTTP request. ``max_message_bytes``: one message of a person.
    - ``max_result_bytes``: what is kept of one tool result.
    - ``agents_at_once``: agents of a turn that were started, items of a ``map`` included, and that run at the
      same time; the next ones are queued.
    - ``turn_timeout_s``: a turn, not counting the time that it waits for a person.
    - ``tool_timeout_s``: one tool call, whatever its server allows.
    - ``tool_memory_bytes``: what a tool server in a subprocess and its children have in memory.
    - ``python_time_s``: the code of one call of ``python``, not counting the time that it waits for forks;
      ``python_cpu_s``: its processor time. ``python_memory_bytes``, ``python_scratch_bytes``: what it has in
      memory, and in its folder. ``python_output_bytes``: what is kept of what it writes.
      ``python_processes``: calls whose code runs at the same time, in one process of a node.
    - ``max_queue_per_conversation``: messages that wait until the turns before theirs have ended.
    - ``max_ongoing_requests``: requests that one gateway works on. ``max_queued_requests``: requests that
      wait for a gateway; the next one gets a 503.
    - ``max_streams``: event streams that are open at one gateway.
    - ``max_log_bytes``: a conversation that is imported.
    - ``max_tree_depth``, ``max_tree_nodes``: the size of ``agent``.
    """

    max_tool_iterations: Annotated[int, Field(ge=1, le=1000)] = 10
    max_llm_calls: Count = 500
    max_tool_calls: Count = 100
    max_parallel_calls: Annotated[int, Field(ge=1, le=1000)] = 8
    max_tools_bytes: Bytes = 512 * 1024
    max_body_bytes: Bytes = 1024 * 1024
    max_message_bytes: Bytes = 256 * 1024
    max_result_bytes: Bytes = 64 * 1024
    agents_at_once: Annotated[int, Field(ge=1, le=100_000)] = 32
    turn_timeout_s: Seconds = 3600
    tool_timeout_s: Seconds = 600
    tool_memory_bytes: Annotated[int, Field(ge=128 << 20, le=1 << 40)] = 2 << 30
    python_time_s: Seconds = 60
    python_cpu_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    python_memory_bytes: Annotated[int, Field(ge=64 << 20, le=1 << 40)] = 512 << 20
    python_scratch_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 64 << 20
    python_output_bytes: Bytes = 64 * 1024
    python_processes: Annotated[int, Field(ge=1, le=1000)] = 16
    max_queue_per_conversation: Count = 100
    max_ongoing_requests: Count = 4000
    max_queued_requests: Count = 2000
    max_streams: Count = 2000
    max_log_bytes: Bytes = 64 * 1024 * 1024
    max_tree_depth: Annotated[int, Field(ge=1, le=80)] = MAX_TREE_DEPTH
    max_tree_nodes: Annotated[int, Field(ge=1, le=10_000)] = MAX_TREE_NODES


class Card(ConfigSection):
    """The agent card (A2A), and how the A2A endpoint behaves.

    - ``url``: the public URL of this agent. None takes it from the request; if the request came through one
      of ``proxies`` (addresses or networks), from the headers that the proxy sets.
    - ``version``: of the agent. None means the digest of this config.
    - ``versions``: the versions of the protocol that the card offers.
    - ``security``: security schemes by name, as the specification writes them. A caller needs one of them.
    - ``public_skills``: globs of the skills on the public card; None means all. The other skills are only on
      the extended card, which requires ``security`` as the rest of the endpoint does.
    - ``push_hosts``: hosts that may receive notifications although their addresses are private.
    - ``direct_answers``: a first message whose answer needs neither a tool nor a person is answered with a
      message instead of a task.
    - ``files``: whether files in a message are refused or mentioned to the model. No model here reads them.
    """

    url: Url | None = None
    proxies: Many[Network] = ()
    version: Text | None = None
    versions: Annotated[Many[Literal["1.0", "0.3"]], Field(min_length=1)] = ("1.0", "0.3")
    organization: str = ""
    organization_url: Url | None = None
    documentation_url: Url | None = None
    security: dict[Identifier, SecurityScheme] = {}
    public_skills: Many[Text] | None = None
    push_hosts: Many[Text] = ()
    direct_answers: bool = False
    files: Literal["refuse", "mention"] = "refuse"


class Cors(ConfigSection):
    """Which web pages may use the API besides its own. ``origins`` are written as browsers send them: scheme,
    name and port. A browser's request from any other origin is refused."""

    origins: Many[Origin] = ()


class Auth(ConfigSection):
    """Requires an API key of every caller. ``mesh key new`` adds a key to ``keys_file``, which is read again
    when it changes."""

    keys_file: Directory


class Scale(ConfigSection):
    """As many processes as it takes, from ``min`` to ``max``, that each has ``target`` requests (of keepers:
    turns under way) at a time. Each asks Ray for ``resources``; with none, for a little CPU. In a config also
    a number, which is ``min`` and ``max``."""

    min: Annotated[int, Field(ge=1, le=1000)] = 1
    max: Annotated[int, Field(ge=1, le=1000)]
    target: Annotated[float, Field(gt=0, le=100_000)] = 100
    resources: Resources = {}

    @property
    def is_fixed(self) -> bool:
        """Whether it is always the same number."""
        return self.min == self.max


def _as_scale(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if is_number else value


def _as_scale_or_none(value: Any) -> Any:
    return _as_none(_as_scale(value))


class Cluster(ConfigSection):
    """How many processes of each kind there are; of keepers, None (in a config, ``auto``) is one a machine.
    ``nodes`` are the replicas of an agent that has no ``agent:``, as those of a node. Actors that are made on
    first use (``replicas: 0`` and older versions) leave after ``idle_timeout_s`` without work.
    ``isolation``: whether each node has a process of its own, or those that ask for nothing special share
    one."""

    gateways: Annotated[Scale, BeforeValidator(_as_scale)] = Scale(max=1)
    keepers: Annotated[Scale | None, BeforeValidator(_as_scale_or_none)] = None
    nodes: Annotated[Annotated[int, Field(ge=1, le=1000)] | None, BeforeValidator(_as_none)] = 1
    idle_timeout_s: Seconds = 300
    isolation: Literal["own", "shared"] = "own"


class StoreOptions(ConfigSection):
    """A database of PostgreSQL that keeps the conversations. ``namespace`` is the schema of its tables:
    agents in one schema need different names."""

    url: DatabaseUrl
    namespace: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "mesh"


Days = Annotated[float, Field(gt=0, le=36_600)]


class RetentionOptions(ConfigSection):
    """When conversations are deleted by themselves: after so many days in which nothing happened, completed
    ones (``completed_days``), and all whose newest turn has ended (``idle_days``). None keeps them."""

    completed_days: Days | None = None
    idle_days: Days | None = None


def _store_options(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class OtelOptions(ConfigSection):
    """Traces for OpenTelemetry. ``endpoint`` is the URL of a collector that speaks OTLP over HTTP,
    ``headers`` are sent with each request, ``sample`` is the share of turns that are sent where the caller
    does not decide. With ``contents``, the words of models and tools are sent, too."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/]+")]
    headers: dict[Text, str] = {}
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    contents: bool = False


class Config(ConfigSection):
    """An agent and where it runs.

    ``agents`` are those that llm nodes may call by name, besides those that are written in other llm nodes.
    ``budget`` bounds a turn. ``policy`` says which calls run, ask or are denied; with None the hints of the
    tools do.

    ``allowed_hosts`` are names under which clients reach the API, besides addresses, ``localhost``, ``host``
    and the host of ``card.url``; requests for other names are refused. With ``auth`` None everybody who
    reaches the API may use it. ``store`` is the database that keeps the conversations, or its URL; with None
    they are files in ``data_dir``. ``retention`` says when they are deleted. ``versions`` says on
    which version of the agent the turns of a conversation run that began on an older one: ``newest``, or
    ``pinned`` to the one that it is on. ``promote`` says when a deployment takes the conversations over from
    the one before: as soon as it is ready, or when ``mesh promote`` says so (``manual``). ``otel`` is the
    collector to which traces are sent. An approval that nobody decides within ``approval_timeout_s`` counts
    as rejected; None means that it waits for ever. ``intervene`` is what people may do with agents at work;
    None means all of it.

    Other processes get `source` and `files`, and parse them in their own environment, so that secrets are
    never sent.
    """

    name: Name = "agent"
    description: str = ""
    prompt: str = ""
    host: Text = "0.0.0.0"
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    allowed_hosts: Many[HostName] = ()
    cors: Cors = Cors()
    auth: Auth | None = None
    data_dir: Directory = Path("data")
    store: Annotated[StoreOptions | None, BeforeValidator(_store_options)] = None
    retention: RetentionOptions = RetentionOptions()
    versions: Literal["newest", "pinned"] = "newest"
    promote: Literal["auto", "manual"] = "auto"
    otel: OtelOptions | None = None
    llm: LlmOptions = LlmOptions()
    mcp: ServerOptions | None = None
    mcp_servers: Many[McpServer] = ()
    a2a: Many[A2aAgent] = ()
    card: Card = Card()
    agent: AgentNode | None = None
    agents: Many[AgentNode] = ()
    budget: TurnBudget = TurnBudget()
    policy: PolicyOptions | None = None
    approval_timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    intervene: Many[NewsAction] | None = None
    limits: Limits = Limits()
    cluster: Cluster = Cluster()

    _source: str = PrivateAttr("")
    _origin: str = PrivateAttr("config")
    _root: YamlNode = PrivateAttr(YamlNode(1, {}))
    _digest: str = PrivateAttr("")
    _files: Mapping[str, FileText] = PrivateAttr({})
    _workspace: Path = PrivateAttr(Path())

    @classmethod
    def parse(
        cls,
        text: str,
        source: str,
        env: Mapping[str, str],
        files: Mapping[str, FileText] | None = None,
        made_from: MadeFrom | None = None,
    ) -> "Config":
        """Returns the config in ``text``. ``source`` is the name of the file, with which problems begin.

        ``files`` is what `Config.files` of the same config was; with None the files that the config names are
        read, relative to the folder of ``source``. ``made_from`` is the file ``source``, if that is not where
        the text stands. Raises `ConfigError` with every problem, in the order of the lines.
        """
        used = Files(Path(source).parent, files, made_from and made_from.file)
        config, root = read_model(
            cls,
            text,
            source,
            env,
            example="name: agent",
            resolve=partial(resolve, files=used),
            checks=cross_checks,
            lines=made_from and made_from.lines,
        )
        config._source, config._origin, config._root = text, source, root
        config._files, config._digest = used.used, _digest(root, used.used)
        config._workspace = workspace_of(env)
        return config

    @property
    def servers(self) -> tuple[McpServer, ...]:
        """Every MCP server. The one of ``mcp:`` is named "mcp" and comes first. No call may take longer than
        `Limits.tool_timeout_s`."""
        first = () if self.mcp is None else (McpServer(name="mcp", **self.mcp.model_dump()),)
        longest = self.limits.tool_timeout_s
        return tuple(
            server.model_copy(update={"timeout_s": min(server.timeout_s, longest)})
            for server in (*first, *self.mcp_servers)
        )

    @property
    def tree(self) -> AgentNode:
        """The agent's tree. Without ``agent:`` it is a single llm node with the top-level prompt."""
        return self.agent or AgentNode(name=self.name, type="llm", replicas=self.cluster.nodes)

    def nodes(self) -> Iterator[tuple[Loc, AgentNode]]:
        """Yields every node of the tree and of the agents that can be called, with its location."""
        for loc, root in ((("agent",), self.tree), *((("agents", i), a) for i, a in enumerate(self.agents))):
            yield from _nodes(root, loc)

    @property
    def callable_agents(self) -> dict[str, AgentNode]:
        """The agents that can be called, by name: `agents`, and those that are written in llm nodes."""
        written = [a for _, node in self.nodes() if node.type == "llm" for a in node.agents]
        return {agent.name: agent for agent in (*self.agents, *written) if agent.type != "agent"}

    @property
    def validating_agents(self) -> frozenset[str]:
        """The names of the agents that check answers, or end loops."""
        return frozenset(each.agent for _, node in self.nodes() for each in node.conditions if each.agent)

    def checks(self) -> Iterator[tuple[Loc, str]]:
        """Yields the name of each function that checks answers or ends a loop, with its location."""
        for loc, node in self.nodes():
            yield from node.named_conditions(loc, "check")

    def models(self) -> Iterator[tuple[Loc, str]]:
        """Yields each model that a node uses, with the location of the key that names it."""
        for loc, node in self.nodes():
            if node.type == "llm":
                yield ((*loc, "model"), node.model) if node.model else (("llm", "model"), self.llm.model)

    @property
    def source(self) -> str:
        """The text it was parsed from, ``${VAR}`` still in it. With `files` it can be parsed anywhere."""
        return self._source

    @property
    def files(self) -> Mapping[str, FileText]:
        """What the files that it names had, by the location that names them."""
        return self._files

    @property
    def origin(self) -> str:
        """The file it came from, as problems name it."""
        return self._origin

    @property
    def workspace(self) -> Path:
        """The folder whose files the agent works with, in the environment in which it was parsed."""
        return self._workspace

    @property
    def digest(self) -> str:
        """12 hex digits that name this version of the agent. They are the same in every process and
        environment, and do not depend on `DEPLOYMENT_KEYS`."""
        return self._digest

    def told(self, problems: Iterable[Problem]) -> list[str]:
        """Returns problems at keys of the file as `parse` reports them."""
        return told(problems, self._origin, self._root)

    def location(self, *loc: str | int) -> str:
        """Returns how a problem at a key begins: ``config/agent.yaml:3: llm.model``. A key that the file does
        not have gets the line of its nearest ancestor."""
        return f"{self._origin}:{self._root.nearest(loc).line}: {spelled(loc)}"


def _digest(root: YamlNode, files: Mapping[str, FileText]) -> str:
    # Variables are not substituted: the digest is the same wherever the agent runs, and reveals no secret.
    data = {key: value for key, value in root.data().items() if key not in DEPLOYMENT_KEYS}
    if isinstance(llm := data.get("llm"), dict):
        data["llm"] = {key: value for key, value in llm.items() if key != "prices"}
    if files:  # not their paths, which differ from machine to machine
        data = {"config": data, "files": {loc: file.text for loc, file in files.items()}}
    return sha256(canonical(data)).hexdigest()[:12]


def parse(
    text: str, source: str, env: Mapping[str, str], files: Mapping[str, FileText] | None = None
) -> Config:
    """`Config.parse`."""
    return Config.parse(text, source, env, files)


def load(path: Path, env: Mapping[str, str]) -> Config:
    """Returns the config in a file. Raises `ConfigError`, also if the file cannot be read."""
    return Config.parse(read_text(path), str(path), env)


def _nodes(node: AgentNode, loc: Loc) -> Iterator[tuple[Loc, AgentNode]]:
    """Yields a node and all nodes below it, each with its location in the file; and the agents that are
    written in it. A reference to an agent is not a node."""
    if node.type == "agent":
        return
    yield loc, node
    for index, child in enumerate(node.agents):
        yield from _nodes(child, (*loc, "agents", index))
