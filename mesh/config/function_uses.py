"""What a config asks of the functions in its Python files: tools for models, and checks of answers.

Of other servers nobody knows the tools before they run. So a name that no Python file has is a problem only
where all servers are Python files.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, NamedTuple

from mesh.config.files import Description, FileText, Role, describe
from mesh.config.model import AgentNode, Config, McpServer
from mesh.config.read_model import Problem
from mesh.config.schema_kinds import ANY, TEXT, kinds, spoken
from mesh.config.yaml_tree import Loc
from mesh.core.hints import hints_of
from mesh.core.messages import AGENT_TOOL_PREFIX
from mesh.core.spelling import meant

_ONLY_READS = "name a tool there that only reads (read_only=True)"
_GIVEN = ("output", "request")
"""What a check is given."""


class _Function(NamedTuple):
    """A function of a Python file. ``tool`` is how MCP lists it."""

    tool: Mapping[str, Any]
    role: Role
    is_check: bool

    @property
    def schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = self.tool["inputSchema"]
        return schema

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return hints_of(self.tool).read_only

    @property
    def takes(self) -> frozenset[str]:
        """The kinds of answers that it takes."""
        return kinds(self.schema.get("properties", {}).get("output", {}), self.schema)


def description_of(server: McpServer, config: Config) -> Description:
    """What is in the Python file of a server, which has one."""
    assert server.python is not None
    file, memory_bytes = FileText(server.python.path, server.python.code), config.limits.tool_memory_bytes
    return describe(file, server.env, memory_bytes=memory_bytes)


def misused_functions(config: Config) -> Iterator[Problem]:
    """Yields what is wrong with the functions that a config names. The files have no problems."""
    files = [
        (server.python.file, description_of(server, config)) for server in config.servers if server.python
    ]
    functions = {name: function for _, found in files for name, function in _functions(found)}
    plain = {name: file for file, found in files for name in found.undeclared if name not in functions}
    knows_all = all(server.python is not None for server in config.servers)
    for loc, node in config.nodes():
        for at, name in _offered(loc, node):
            if knows_all and name in plain:
                yield at, _only_a_function(name, plain, "@tool")
            elif wrong := _no_tool(name, functions, knows_all) or _changes(config, node, functions):
                yield at, wrong
        for at, name in node.named_conditions(loc, "check"):
            if knows_all and name in plain:
                yield at, _only_a_function(name, plain, "@check")
            elif wrong := _no_check(name, functions, knows_all) or _unfit(config, node, name, functions):
                yield at, wrong


def _only_a_function(name: str, files: Mapping[str, str], kind: str) -> str:
    return f"{name} is only a function of {files[name]}; put {kind} before its def"


def _functions(found: Description) -> Iterator[tuple[str, _Function]]:
    for is_check, listed in ((False, found.tools), (True, found.checks)):
        for tool in listed:
            yield tool["name"], _Function(tool, found.roles.get(tool["name"], Role()), is_check)


def _offered(loc: Loc, node: AgentNode) -> Iterator[tuple[Loc, str]]:
    """The names and globs of tools that models or tool nodes are to call."""
    if node.tool is not None:
        yield (*loc, "tool"), node.tool
    for index, name in enumerate(node.tools or ()):
        if not name.startswith(AGENT_TOOL_PREFIX):
            yield (*loc, "tools", index), name


def _no_tool(name: str, functions: Mapping[str, _Function], knows_all: bool) -> str:
    """Why models cannot be offered a name; empty if they can, or if that is not known."""
    tools = [each for each, function in functions.items() if not function.is_check]
    if any(fnmatch(tool, name) for tool in tools):
        return ""
    if name in functions:
        if functions[name].role.outcomes_of:
            return f"{name} {_finds_out(functions[name])}, which only the mesh asks; remove it here"
        return f"{name} is a check of answers, which models are not offered; name it in validate instead"
    return f"no tool has this name; {meant(name, tools)}" if knows_all else ""


def _changes(config: Config, node: AgentNode, functions: Mapping[str, _Function]) -> str:
    """Why a tool node cannot be an agent that checks answers; empty if it can, is none, or if that is not
    known. Its call is a part of the check, so that nobody would be asked."""
    function = functions.get(node.tool or "")
    if function is None or function.reads or node.name not in config.validating_agents:
        return ""
    return f"{node.name} checks answers, and {node.tool} may change something; {_ONLY_READS}"


def _no_check(name: str, functions: Mapping[str, _Function], knows_all: bool) -> str:
    """Why a name cannot check answers; empty if it can, or if that is not known."""
    usable = [each for each, function in functions.items() if not _no_verdict(function)]
    if name in usable or (name not in functions and not knows_all):
        return ""
    wrong = f"{name} {_no_verdict(functions[name])}" if name in functions else "no check has this name"
    if not usable:
        wanted = "put @check before a function (output: str) -> bool | str"
        return f"{wrong}; {wanted}, in a Python file that mcp_servers names"
    return f"{wrong}; {meant(name, usable)}"


def _no_verdict(function: _Function) -> str:
    """Why a function cannot check answers; empty if it can."""
    if function.role.outcomes_of:
        return f"{_finds_out(function)}, and does not check answers"
    if function.is_check:
        return ""
    if not function.reads:
        return "may change something, and a check only reads (read_only=True)"
    if wrong := _arguments(function.schema):
        return wrong
    if function.role.no_verdict:
        return f"returns {function.role.no_verdict}, and a check returns True, or a text: what is wrong"
    return ""


def _finds_out(function: _Function) -> str:
    return f"finds out whether a call of {' or '.join(function.role.outcomes_of)} took place"


def _arguments(schema: Mapping[str, Any]) -> str:
    if "output" not in schema.get("properties", {}):
        return "has no argument output, which is the answer that a check is given"
    more = [each for each in schema.get("required", ()) if each not in _GIVEN]
    return f"needs {' and '.join(more)}, and a check is given only output and request" if more else ""


def _unfit(config: Config, node: AgentNode, name: str, functions: Mapping[str, _Function]) -> str:
    """Why a check can take no answer of a node; empty if it may take one."""
    if name not in functions:
        return ""
    takes, gives = functions[name].takes, kinds_of_answers(config, node)
    if takes & (gives | TEXT):  # it gets the text where it does not take the value
        return ""
    what = f"{name} takes {spoken(takes)}, and the answer of {node.name} is {spoken(gives)}"
    if gives == TEXT and node.type == "llm":
        return f"{what}; expected an output_schema beside validate, or a check of output: str"
    return f"{what}; expected a check that takes it"


def kinds_of_answers(config: Config, node: AgentNode) -> frozenset[str]:
    """The kinds of the values that answers of a node are. Without a schema they are texts."""
    if node.output_schema is not None:
        return kinds(node.output_schema, node.output_schema)
    if node.type == "llm":
        return frozenset({"object"}) if node.name in config.validating_agents else TEXT
    return ANY if any(_has_schema(below) for below in node.children) else TEXT


def _has_schema(node: AgentNode) -> bool:
    return node.output_schema is not None or any(map(_has_schema, node.children))
