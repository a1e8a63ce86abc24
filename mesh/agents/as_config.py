"""From the objects of a file to the plain data of a config, with the lines on which its keys were written.

Agents that are called, or that check answers, become entries of ``agents``, in the order in which they are
first met; whoever uses them names them. Functions and types become names, under which the mesh finds them in
the file.
"""

from pathlib import Path
from types import ModuleType
from typing import Any, cast

from mesh.agents.objects import Agent, Function, Settings
from mesh.agents.plain_data import AgentProblem, plain, set_fields
from mesh.config.call_lines import CallLines, Expression
from mesh.config.yaml_tree import Loc
from mesh.tools.arguments import UnusableArgument
from mesh.tools.declare import declared_of, noted_on
from mesh.tools.describe import schema_of
from mesh.tools.file import ToolFile


class AsConfig:
    """One file on its way to a config. ``data`` is its plain data, ``lines`` has the lines of its keys."""

    def __init__(self, path: Path, module: ModuleType, tools: ToolFile, call_lines: CallLines) -> None:
        self.data: dict[str, Any] = {}
        self.lines: dict[Loc, int] = {}
        self._path = path
        self._module = module
        self._tools = tools
        self._call_lines = call_lines
        self._called: list[Agent] = []

    def convert(self, agent: Agent, settings: Settings | None) -> None:
        """Raises `AgentProblem`."""
        if settings is not None:
            self._note((), settings.expression)
            self._called += settings.agents
        given = {} if settings is None else set_fields(settings)
        if "agent" in given:
            raise AgentProblem(("agent",), "is the variable agent of this file, and no key of its settings")
        self.data = {
            "name": agent.name,
            **{key: plain(each, (key,)) for key, each in given.items() if key != "agents"},
        }
        self.data["agent"] = self._node(agent, ("agent",))
        self._add_agents()
        self._add_server()

    def _add_agents(self) -> None:
        done: list[dict[str, Any]] = []
        while len(done) < len(self._called):  # each may call further ones
            done.append(self._node(self._called[len(done)], ("agents", len(done))))
        if done:
            self.data["agents"] = done

    def _add_server(self) -> None:
        """Serves the functions of the file."""
        servers = self.data.setdefault("mcp_servers", [])
        is_there = any(isinstance(each, dict) and each.get("python") == self._path.name for each in servers)
        if self._tools.functions and not is_there:
            name = "".join(c if c.isascii() and c.isalnum() else "-" for c in self._path.stem).strip("-")
            servers.append({"name": name[:63] or "tools", "python": self._path.name})
        if not servers:
            del self.data["mcp_servers"]

    def _node(self, agent: Agent, loc: Loc) -> dict[str, Any]:
        self._note(loc, agent.expression)
        given = set_fields(agent)
        node: dict[str, Any] = {"name": agent.name, "type": agent.type}
        for key, value in given.items():
            if value is not None:  # as in Python: the same as no key
                node[key] = self._value(agent, key, value, (*loc, key))
        return node

    def _value(self, agent: Agent, key: str, value: Any, loc: Loc) -> Any:
        match key, value:
            case "agents", _ if agent.type == "llm":
                return [self._called_name(each) for each in value]
            case "agents", _:
                return [self._child(each, (*loc, index)) for index, each in enumerate(value)]
            case "tools", [*tools]:
                return [self._tool_name(each, loc) for each in tools]
            case "tool", _ if callable(value):
                return self._tool_name(value, loc)
            case "validate", _:
                return [self._condition(each, loc) for each in value]
            case "exit_when", _:
                return self._condition(value, loc)
            case "output_schema", type():
                return self._type_name(value, loc)
            case "input_schema", type():
                return self._schema(value, loc)
        return plain(value, loc)

    def _child(self, child: Agent | str, loc: Loc) -> Any:
        return child if isinstance(child, str) else self._node(child, loc)

    def _called_name(self, agent: Agent | str) -> str:
        if isinstance(agent, str) or agent.type == "agent":
            return agent if isinstance(agent, str) else agent.name
        if not any(agent is each for each in self._called):
            self._called.append(agent)
        return agent.name

    def _condition(self, condition: Any, loc: Loc) -> Any:
        if isinstance(condition, Agent):
            return {"agent": self._called_name(condition)}
        if isinstance(condition, type):
            return {"schema": self._type_name(condition, loc)}
        if callable(condition):
            return {"check": self._tool_name(condition, loc)}
        return plain(condition, loc)

    def _tool_name(self, tool: Function | str, loc: Loc) -> str:
        if isinstance(tool, str):
            return tool
        if any(tool is each.declared.function for each in self._tools.functions):
            return tool.__name__
        name = getattr(tool, "__name__", type(tool).__name__)
        if declared_of(tool) is None:
            if noted_on(tool) is not None:
                how = "put that above all other decorators"
                raise AgentProblem(loc, f"{name} is a function around the one with @tool or @check; {how}")
            kind = "@check" if loc[-1] in ("validate", "exit_when") else "@tool"
            raise AgentProblem(loc, f"{name} is only a function; put {kind} before its def")
        raise AgentProblem(loc, f"{name} is in another file; import it by its name, so that it is served")

    def _type_name(self, found: type, loc: Loc) -> str:
        for name, value in vars(self._module).items():
            if value is found:
                return f"{self._path.name}:{name}"
        raise AgentProblem(loc, f"{found.__name__} is no name of this file; define it at the top level")

    def _schema(self, found: type, loc: Loc) -> dict[str, Any]:
        try:
            name = self._type_name(found, loc).rpartition(":")[2]
            return cast(dict[str, Any], plain(schema_of(self._module, name), loc))
        except UnusableArgument as error:
            raise AgentProblem(loc, f"{found.__name__}: {error}") from None

    def _note(self, loc: Loc, expression: Expression | None) -> None:
        for key, line in self._call_lines.of(expression):
            self.lines[(*loc, key) if key else loc] = line
