"""From the objects of a file to the plain data of a config, with the lines on which its keys were written.

Agents that are called, or that check answers, become entries of ``agents``, in the order in which they are
first met; whoever uses them names them. Functions and types become names, under which the mesh finds them in
the file.
"""

import ast
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import BaseModel

from mesh.agents.objects import Agent, Expression, Function, Settings
from mesh.config.yaml_tree import Loc
from mesh.tools.arguments import UnusableArgument
from mesh.tools.declare import declared_of
from mesh.tools.describe import schema_of
from mesh.tools.file import ToolFile


class AgentProblem(Exception):
    """Something wrong with an object of the file, at a key of the config."""

    def __init__(self, loc: Loc, message: str) -> None:
        super().__init__(message)
        self.loc = loc


class AsConfig:
    """One file on its way to a config. ``data`` is its plain data, ``lines`` has the lines of its keys."""

    def __init__(self, path: Path, module: ModuleType, tools: ToolFile, places: "Places") -> None:
        self.data: dict[str, Any] = {}
        self.lines: dict[Loc, int] = {}
        self._path = path
        self._module = module
        self._tools = tools
        self._places = places
        self._called: list[Agent] = []

    def convert(self, agent: Agent, settings: Settings | None) -> None:
        """Raises `AgentProblem`."""
        if settings is not None:
            self._note((), settings.expression)
            self._called += settings.agents
        given = {} if settings is None else _set_fields(settings)
        if "agent" in given:
            raise AgentProblem(("agent",), "is the variable agent of this file, and no key of its settings")
        self.data = {
            "name": agent.name,
            **{key: _plain(each, (key,)) for key, each in given.items() if key != "agents"},
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
        given = _set_fields(agent)
        node: dict[str, Any] = {"name": agent.name, "type": agent.type}
        for key, value in given.items():
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
        return _plain(value, loc)

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
        if isinstance(condition, str):
            return {"schema": condition}
        if callable(condition):
            return {"check": self._tool_name(condition, loc)}
        return _plain(condition, loc)

    def _tool_name(self, tool: Function | str, loc: Loc) -> str:
        if isinstance(tool, str):
            return tool
        if any(tool is each.declared.function for each in self._tools.functions):
            return tool.__name__
        name = getattr(tool, "__name__", type(tool).__name__)
        if declared_of(tool) is None:
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
            return cast(dict[str, Any], _plain(schema_of(self._module, name), loc))
        except UnusableArgument as error:
            raise AgentProblem(loc, f"{found.__name__}: {error}") from None

    def _note(self, loc: Loc, expression: Expression | None) -> None:
        for key, line in self._places.lines_of(expression):
            self.lines[(*loc, key) if key else loc] = line


class Places:
    """Where the arguments of the calls in a file are."""

    def __init__(self, code: str, path: Path) -> None:
        self._path = str(path)
        calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
        self._calls = {
            (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset): call for call in calls
        }

    def lines_of(self, expression: Expression | None) -> Iterator[tuple[str, int]]:
        """Yields the line of a call, under the empty name, and of its arguments."""
        if expression is None or expression.file != self._path:
            return
        yield "", expression.line
        call = self._calls.get(expression[1:])
        for argument in call.keywords if call else ():
            if argument.arg:
                yield argument.arg, argument.lineno


def _set_fields(model: BaseModel) -> dict[str, Any]:
    """The fields that were given, under the names that a config has for them, in the order of the model."""
    fields = type(model).model_fields
    return {
        field.alias or name: getattr(model, name)
        for name, field in fields.items()
        if name in model.model_fields_set
    }


def _plain(value: Any, loc: Loc) -> Any:
    """A value as a config has it. Raises `AgentProblem`."""
    if isinstance(value, BaseModel):
        return {key: _plain(each, (*loc, key)) for key, each in _set_fields(value).items()}
    if isinstance(value, Mapping):
        return {_key(key, loc): _plain(each, (*loc, key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, (*loc, index)) for index, each in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if wrong := _not_in_a_config(value):
        raise AgentProblem(loc, wrong)
    return value


def _key(key: object, loc: Loc) -> str:
    if not isinstance(key, str) or (wrong := _not_in_a_config(key)):
        raise AgentProblem(loc, "has a key that is no text" if not isinstance(key, str) else wrong)
    return key


def _not_in_a_config(value: Any) -> str:
    """Why a scalar cannot be in a config, or nothing."""
    if isinstance(value, str):
        has_surrogate = not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)
        return (
            "has a character that a config cannot hold; remove it" if "\0" in value or has_surrogate else ""
        )
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return "has more than 18 digits; expected a shorter number" if abs(value) >= 10**18 else ""
    if isinstance(value, float):
        return "" if isfinite(value) else "is no finite number; expected one"
    return f"is of type {type(value).__name__}; expected text, a number, a list or a mapping"
