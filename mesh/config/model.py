"""What `agent.yaml` may say: the models, their defaults and bounds.

    text ── config_source ──► nodes with lines, environment put in
         ── config_rules ───► what one key asks of another
         ── the models ─────► types and bounds of each key
         ──► `Config`, or one `ConfigError` with every problem

Times are in seconds, sizes in bytes. Values are never repeated in a problem: they may be secrets.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, Strict, ValidationError
from pydantic_core import PydanticCustomError

from mesh.config.problems import problems_of, spelled
from mesh.config.rules import MAX_TREE_DEPTH, MAX_TREE_NODES, broken_rules
from mesh.config.source import Loc, Node, Resolved, canonical, compose, read_text
from mesh.core.errors import ConfigError
from mesh.core.policy import Unannotated
from mesh.net.origin import as_origin, is_address, is_name

DEFAULT_MODEL = "gemini-2.5-flash"
NOT_THE_AGENT = ("host", "port", "allowed_hosts", "cors", "auth", "data_dir", "cluster", "card")
"""Where and how wide it runs, not what it is: no part of the digest, and neither is ``llm.prices``."""

_SHOWN = ("name", "type", "model", "command")


def _directory(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("path", "expected a directory; the user after ~ is not known") from error


def _http_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError("url", "expected a URL that starts with http:// or https://")
    return url


def _network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError as error:
        raise PydanticCustomError("network", "expected an address or network, such as 10.0.0.0/8") from error
    return text


def _host_name(text: str) -> str:
    name = text.lower().rstrip(".")
    if not (is_name(name) or is_address(name.strip("[]"))):
        raise PydanticCustomError(
            "host", "expected a name such as agents.example.com, without scheme and port"
        )
    return name


def _origin(text: str) -> str:
    if not (origin := as_origin(text)):
        raise PydanticCustomError(
            "origin", "expected an origin such as https://app.example.com, without a path; * is not possible"
        )
    return origin


def _security_scheme(scheme: dict[str, Any]) -> dict[str, Any]:
    from a2a.types.a2a_pb2 import SecurityScheme  # a fifth of a second, for those few who have one
    from google.protobuf.json_format import ParseDict, ParseError

    try:
        ParseDict(scheme, SecurityScheme())
    except ParseError as error:
        raise PydanticCustomError(
            "security",
            "expected a security scheme of A2A 1.0, such as {httpAuthSecurityScheme: {scheme: Bearer}}",
        ) from error
    return scheme


T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
Key = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Url = Annotated[str, AfterValidator(_http_url)]
Network = Annotated[str, AfterValidator(_network)]
HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
ApiKey = Annotated[str, Field(pattern=r"^[\x21-\x7e]{0,200}$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Usd = Annotated[float, Field(ge=0, le=1_000_000)]
Bytes = Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Part(BaseModel):
    """What every part shares: strict, frozen, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Any text may hold a secret (arguments, environment, headers, URLs): few keys are shown.
        for key, value in super().__repr_args__():
            if key in _SHOWN or not isinstance(value, str | list | dict):
                yield key, value


class ModelPrice(Part):
    """What a model costs, in USD per million tokens. ``cached`` is for what of the input was read from the
    provider's cache; None: as ``input``."""

    input: Usd
    output: Usd
    cached: Usd | None = None


class Llm(Part):
    """The model that answers. ``max_tokens`` None: the provider's own bound (4096 for Claude).
    ``timeout_s`` bounds each request to the provider. ``prices``: what the session log reckons with instead
    of list prices, by model; a name without its date or provider stands for all of them."""

    model: Text = DEFAULT_MODEL
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    timeout_s: Seconds = 60
    prices: dict[Text, ModelPrice] = {}


class ServerOptions(Part):
    """A server in a subprocess, and the bounds of its session.

    ``unannotated``: whether a tool without hints asks a person. ``timeout_s`` bounds a call,
    ``start_timeout_s`` the start of the session, ``max_result_bytes`` one result.
    ``env`` is all that the server gets besides HOME, LOGNAME, PATH, SHELL, TERM and USER of the mesh's
    own environment, and wins over these.
    """

    command: Text | None = None
    args: list[str] = []
    env: dict[Text, str] = {}
    unannotated: Unannotated = "ask"
    timeout_s: Seconds = 60
    start_timeout_s: Seconds = 30
    max_result_bytes: Bytes = 1024 * 1024


class McpServer(ServerOptions):
    """An MCP server: ``command`` for a subprocess (stdio), ``url`` for Streamable HTTP."""

    name: Name
    url: Url | None = None
    headers: dict[Text, str] = {}


class A2aAgent(Part):
    """Another agent, offered to the model as the tool ``a2a_<name>``.

    ``destructiveHint`` true: a person is asked before each message. False, if it is said and not left out: a
    message that is met with HTTP 500 has failed, and nobody is asked about it.
    ``card_url`` None: the card is looked for where the specification says. ``key``: an API key of the agent's
    mesh, sent as X-API-Key to the origin of ``url`` alone.
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
        """Whether ``destructiveHint: false`` was said, rather than left out."""
        return "destructive" in self.model_fields_set and not self.destructive


class AgentNode(Part):
    """A node of the agent's tree. Which key goes with which type: `mesh.config.rules`.

    ``prompt`` may hold ``{placeholders}``. ``tools``: names or globs, None for all of them.
    ``can_ask_user``: it has the tool ``ask_user``, and so can ask the person.
    ``approvals``: whether destructive tools under a parallel or loop ask or run at once; None: as the
    parallel or loop around it, and where there is none, at once (inline).
    ``replicas`` is the number of actors (0: none until it is used), ``resources`` what each asks of
    Ray, such as ``num_cpus``. ``timeout_s`` None: only the turn's own bound.
    """

    name: Name
    type: Literal["llm", "sequential", "parallel", "loop", "a2a"]
    description: str = ""
    agents: "Many[AgentNode]" = ()
    model: Text | None = None
    prompt: str = ""
    output_key: Key | None = None
    can_exit_loop: bool = False
    can_ask_user: bool = False
    max_iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    url: Url | None = None
    key: ApiKey = ""
    card_url: Url | None = None
    destructive: bool = Field(default=False, alias="destructiveHint")
    a2a: Many[A2aAgent] = ()
    tools: Many[Text] | None = None
    approvals: Literal["inline", "ask"] | None = None
    on_error: Literal["fail", "continue"] = "fail"
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    resources: dict[Text, Annotated[float, Field(ge=0)]] = {}
    timeout_s: Seconds | None = None

    def as_agent(self) -> A2aAgent:
        """The agent that a node of type a2a hands its work to."""
        assert self.url is not None  # see `mesh.config.rules`
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


class Limits(Part):
    """Bounds. Each holds whatever a model, a server or a client does.

    ``max_tool_iterations``: model calls of one llm node until it has its answer; in a loop, each round
    counts anew. ``max_llm_calls``: model calls of a turn, over all its nodes, rounds and pauses; branches
    of a parallel node may exceed it by what is on its way at that moment. ``max_tool_calls``: in one
    answer of a model. ``max_tools_bytes``: names, descriptions and schemas of the tools that one node
    shows its model. ``max_body_bytes``: an HTTP request.
    ``max_message_bytes``: one message of a person. ``max_result_bytes``: what is kept of one tool
    result. ``turn_timeout_s``: a turn, the time it waits for a person not counted.
    ``tool_timeout_s``: one tool call, whatever its server allows. ``max_queue_per_conversation``:
    messages that wait their turn. ``max_ongoing_requests`` of one gateway; ``max_queued_requests``
    behind it, the next gets 503. ``max_streams`` of events, open at one gateway. ``max_log_bytes``: a
    conversation that is imported. ``max_tree_depth`` and ``max_tree_nodes`` of ``agent``.
    """

    max_tool_iterations: Annotated[int, Field(ge=1, le=1000)] = 10
    max_llm_calls: Count = 500
    max_tool_calls: Count = 100
    max_tools_bytes: Bytes = 512 * 1024
    max_body_bytes: Bytes = 1024 * 1024
    max_message_bytes: Bytes = 256 * 1024
    max_result_bytes: Bytes = 64 * 1024
    turn_timeout_s: Seconds = 3600
    tool_timeout_s: Seconds = 600
    max_queue_per_conversation: Count = 100
    max_ongoing_requests: Count = 4000
    max_queued_requests: Count = 2000
    max_streams: Count = 2000
    max_log_bytes: Bytes = 64 * 1024 * 1024
    max_tree_depth: Annotated[int, Field(ge=1, le=80)] = MAX_TREE_DEPTH
    max_tree_nodes: Annotated[int, Field(ge=1, le=10_000)] = MAX_TREE_NODES


class Card(Part):
    """How the agent shows itself to others (A2A), and where they find it.

    ``url``: of this agent as the world sees it; None: as the request says, and if it came from one of
    ``proxies`` (addresses or networks), as that forwards it. ``version`` None: the digest of this config.
    ``versions`` of the protocol that the card offers. ``security``: security schemes by name, as the
    specification writes them; a caller needs one of them. ``public_skills``: globs of the skills that
    everybody sees; the others are in the extended card alone, which is behind ``security`` as the rest of the
    endpoint; None: all. ``push_hosts``: those that notifications may go to although their address is private.
    ``direct_answers``: a first message that is answered without a tool and without asking anybody gets a
    message as its answer, and not a task. ``files`` in a message are refused, as no model here reads them, or
    mentioned to it.
    """

    url: Url | None = None
    proxies: Many[Network] = ()
    version: Text | None = None
    versions: Annotated[Many[Literal["1.0", "0.3"]], Field(min_length=1)] = ("1.0", "0.3")
    organization: str = ""
    organization_url: Url | None = None
    documentation_url: Url | None = None
    security: dict[Key, Annotated[dict[str, Any], AfterValidator(_security_scheme)]] = {}
    public_skills: Many[Text] | None = None
    push_hosts: Many[Text] = ()
    direct_answers: bool = False
    files: Literal["refuse", "mention"] = "refuse"


class Cors(Part):
    """``origins`` of web pages that may use the API, besides its own pages: scheme, name and port, as
    browsers say them. What a browser sends from any other origin is refused."""

    origins: Many[Origin] = ()


class Auth(Part):
    """Who may use the API: whoever has one of the keys in ``keys_file`` (``mesh key new``), and nobody else.
    The file is read again when it changes."""

    keys_file: Annotated[Path, Strict(False), AfterValidator(_directory)]


class Cluster(Part):
    """How many processes of each kind. ``nodes`` counts the replicas of the agent without ``agent:``.
    ``idle_timeout_s``: when actors leave that are made on use (``replicas: 0``, older versions)."""

    gateways: Annotated[int, Field(ge=1, le=1000)] = 1
    keepers: Annotated[int, Field(ge=1, le=1000)] = 1
    nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    idle_timeout_s: Seconds = 300


class Config(Part):
    """An agent and where it runs.

    ``allowed_hosts``: names that the API is reached by, besides addresses, ``localhost``, ``host`` and the
    host of ``card.url``; requests for other names are refused. ``auth`` None: everybody who reaches the API
    may use it.
    ``approval_timeout_s``: how long an approval waits for a person before it counts as rejected; None: for
    ever.
    Another process gets `source` and parses it in its own environment: secrets do not travel.
    """

    name: Name = "agent"
    description: str = ""
    prompt: str = ""
    host: Text = "0.0.0.0"
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    allowed_hosts: Many[HostName] = ()
    cors: Cors = Cors()
    auth: Auth | None = None
    data_dir: Annotated[Path, Strict(False), AfterValidator(_directory)] = Path("data")
    llm: Llm = Llm()
    mcp: ServerOptions | None = None
    mcp_servers: Many[McpServer] = ()
    a2a: Many[A2aAgent] = ()
    card: Card = Card()
    agent: AgentNode | None = None
    approval_timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    limits: Limits = Limits()
    cluster: Cluster = Cluster()

    _source: str = PrivateAttr("")
    _origin: str = PrivateAttr("config")
    _root: Node = PrivateAttr(Node(1, {}))
    _digest: str = PrivateAttr("")

    @classmethod
    def parse(cls, text: str, source: str, env: Mapping[str, str]) -> "Config":
        """The config that ``text`` says; ``source`` is the name problems begin with (a file).

        Raises `ConfigError` with every problem, in the order of the lines.
        """
        root = compose(text, source)
        if not isinstance(root.value, dict):
            raise ConfigError([f"{source}:{root.line}: expected keys at the top level, such as name: agent"])
        resolved = Resolved(env)
        data = resolved.data(root)
        config, problems = _validated(data, resolved)
        if config is None or problems:
            lines = sorted({(root.at(loc).line, spelled(loc), message) for loc, message in problems})
            raise ConfigError([f"{source}:{line}: {key}: {message}" for line, key, message in lines])
        config._source, config._origin, config._root = text, source, root
        config._digest = _digest(root)
        return config

    @property
    def servers(self) -> tuple[McpServer, ...]:
        """Every MCP server; that of ``mcp:`` is named "mcp" and comes first. None takes longer for a call
        than `Limits.tool_timeout_s`."""
        first = () if self.mcp is None else (McpServer(name="mcp", **self.mcp.model_dump()),)
        longest = self.limits.tool_timeout_s
        return tuple(
            server.model_copy(update={"timeout_s": min(server.timeout_s, longest)})
            for server in (*first, *self.mcp_servers)
        )

    @property
    def tree(self) -> AgentNode:
        """The agent's tree; without ``agent:`` a single llm node with the top-level prompt."""
        return self.agent or AgentNode(name=self.name, type="llm", replicas=self.cluster.nodes)

    def models(self) -> Iterator[tuple[Loc, str]]:
        """Each model that a node uses, with the key that names it."""
        for loc, node in _nodes(self.tree, ("agent",)):
            if node.type == "llm":
                yield ((*loc, "model"), node.model) if node.model else (("llm", "model"), self.llm.model)

    @property
    def source(self) -> str:
        """The text it was parsed from, ``${VAR}`` still in it."""
        return self._source

    @property
    def origin(self) -> str:
        """The file it came from, as problems name it."""
        return self._origin

    @property
    def digest(self) -> str:
        """12 hex digits that stand for what the agent is: the same in every process and environment,
        whatever the keys of `NOT_THE_AGENT` say."""
        return self._digest

    def where(self, *loc: str | int) -> str:
        """A place as problems begin: ``config/agent.yaml:3: llm.model``. A key that is absent has the
        line of what it would be in."""
        return f"{self._origin}:{self._root.at(loc).line}: {spelled(loc)}"


def _digest(root: Node) -> str:
    data = {key: value for key, value in root.data().items() if key not in NOT_THE_AGENT}
    if isinstance(llm := data.get("llm"), dict):
        data["llm"] = {key: value for key, value in llm.items() if key != "prices"}
    return sha256(canonical(data)).hexdigest()[:12]


def _validated(data: Any, resolved: Resolved) -> tuple[Config | None, list[tuple[Loc, str]]]:
    """The config or None, and what is wrong with the data."""
    config, errors = _modelled(data)
    if _take_as_text(data, resolved, errors):
        config, errors = _modelled(data)
    found = [*problems_of(errors, Config, data), *broken_rules(data)]
    return config, [*resolved.problems, *(problem for problem in found if problem[0] not in resolved.bad)]


def _modelled(data: Any) -> tuple[Config | None, list[Any]]:
    try:
        return Config.model_validate(data), []
    except ValidationError as error:
        # Without inputs: an input may be a secret.
        return None, error.errors(include_url=False, include_input=False)


def _take_as_text(data: Any, resolved: Resolved, errors: list[Any]) -> bool:
    """``name: ${N}`` with N=7 is the text "7": puts text where a number from the environment was refused,
    and says whether there was such a place."""
    places = [e["loc"] for e in errors if e["type"] == "string_type" and e["loc"] in resolved.text]
    for loc in places:
        parent = data
        for key in loc[:-1]:
            parent = parent[key]
        parent[loc[-1]] = resolved.text[loc]
    return bool(places)


def parse(text: str, source: str, env: Mapping[str, str]) -> Config:
    """`Config.parse`."""
    return Config.parse(text, source, env)


def load(path: Path, env: Mapping[str, str]) -> Config:
    """The config in a file. Raises `ConfigError`, also when the file cannot be read."""
    return Config.parse(read_text(path), str(path), env)


def _nodes(node: AgentNode, loc: Loc) -> Iterator[tuple[Loc, AgentNode]]:
    """A node and all below it, each with its place in the file."""
    yield loc, node
    for index, child in enumerate(node.agents):
        yield from _nodes(child, (*loc, "agents", index))
