"""The functions of one file of tools, and what is wrong with them."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

from mesh.config.cross_checks import BUILT_IN_TOOLS
from mesh.mcp.meta import CHECKED_BY, IS_CHECK
from mesh.mcp.port import TOOL_NAME
from mesh.tools.arguments import Arguments, UnusableArgument, type_hints
from mesh.tools.asking import MAY_NOT_ASK
from mesh.tools.check_signatures import answer_check_problems, cannot_judge, outcome_check_problems
from mesh.tools.declare import DECLARED, Declared, declared_of, noted_on
from mesh.tools.results import without_half_characters
from mesh.tools.source_lines import SourceLines

_READS = "a check only reads (read_only=True, or no decorator)"


class FileProblem(NamedTuple):
    """Something wrong in a file, at a line that counts from 1."""

    line: int
    message: str


@dataclass(frozen=True)
class ToolFunction:
    """A function that a file offers. ``checks`` are the tools whose outcomes it finds out."""

    declared: Declared
    checks: "tuple[ToolFunction, ...]" = ()

    @property
    def name(self) -> str:
        return self.declared.name

    @cached_property
    def arguments(self) -> Arguments:
        """Raises `UnusableArgument`."""
        # A check of an outcome is given all arguments of the tool, and may do without some of them.
        return Arguments(self.declared.function, extra="ignore" if self.checks else "forbid")

    def described(self) -> dict[str, Any]:
        """The tool as MCP lists it. Raises `UnusableArgument`."""
        meta: dict[str, Any] = {IS_CHECK: True} if self.declared.is_check else {}
        if self.declared.check is not None:
            meta[CHECKED_BY] = self.declared.check.__name__
        return {
            "name": self.name,
            "description": self.arguments.description,
            "inputSchema": self.arguments.schema,
            "annotations": self.declared.hints,
            **({"_meta": meta} if meta else {}),
        }

    @property
    def may_not_ask(self) -> str:
        """Why it may start no agents, as it would run again with the answers; empty if it may."""
        hints = self.declared.hints
        is_repeatable = hints.get("readOnlyHint") or hints.get("idempotentHint")
        return "" if is_repeatable and not self.declared.is_check and not self.checks else MAY_NOT_ASK

    def role(self) -> dict[str, Any]:
        """See `mesh.config.files.Role`."""
        returned = type_hints(self.declared.function).get("return")
        wrong = inspect.formatannotation(returned) if cannot_judge(returned) else ""
        return {"outcomes_of": [tool.name for tool in self.checks], "no_verdict": wrong}

    def problems(self) -> Iterator[str]:
        """Yields what is wrong with it as a whole. Raises `UnusableArgument`."""
        around = noted_on(self.declared.check)
        if around is not None and around.function is not self.declared.check:
            what = f"its check is a function around {around.name} (functools.wraps)"
            yield f"{what}; expected {around.name} itself, or a function of its own"
        if problem := generator_problem(self.declared.function):
            yield problem
        if self.name in BUILT_IN_TOOLS:
            yield "is the name of a built-in tool; choose another"
        elif not TOOL_NAME.fullmatch(self.name):
            yield "a tool's name is 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'"
        if _has_half_character(self.described()):
            yield "says something that has half a character (a lone surrogate); write the whole one"
        schema, returned = self.arguments.schema, type_hints(self.declared.function).get("return")
        for tool in self.checks:
            if not self.declared.hints.get("readOnlyHint"):
                yield f"may change something, and finds out what came of {tool.name}; {_READS}"
            with suppress(UnusableArgument):  # that is a problem of the tool, and is told there
                yield from outcome_check_problems(schema, returned, tool.name, tool.arguments.schema)
        if self.declared.is_check and not self.checks:
            yield from answer_check_problems(schema, returned)


class ToolFile:
    """The functions of a module."""

    def __init__(self, module: ModuleType, code: str) -> None:
        self.lines = SourceLines(code, str(module.__file__))
        self.functions = [*_functions(_declared_in(module))]
        self._hidden = [*_hidden_in(module)]

    def problems(self) -> Iterator[FileProblem]:
        """Yields what is wrong, function by function."""
        for hidden in self._hidden:
            kind = "@check" if hidden.is_check else "@tool"
            what = f"its name is another function: a decorator above {kind} made it, or a second def"
            how = f"put {kind} above all other decorators"
            yield FileProblem(self.lines.function(hidden.function), f"{hidden.name}: {what}; {how}")
        first: dict[str, int] = {}
        for function in self.functions:
            line = self.line(function)
            if function.name in first:
                why = f"a second tool of this name; the first is on line {first[function.name]}"
                yield FileProblem(line, f"{function.name}: {why}")
            first.setdefault(function.name, line)
            try:
                yield from (FileProblem(line, f"{function.name}: {why}") for why in function.problems())
            except UnusableArgument as problem:
                line = self.lines.function(function.declared.function, problem.argument)
                where = f"{function.name}: {problem.argument}".removesuffix(": ")
                yield FileProblem(line, f"{where}: {problem}")

    def line(self, function: ToolFunction) -> int:
        return self.lines.function(function.declared.function)


def generator_problem(function: Callable[..., Any]) -> str:
    """What is wrong with a function that yields; an empty text if it does not. One that wraps a generator may
    return all that it yields: it is the outer function that is called."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return "yields its result (a generator); return all of it at once, and tell ctx.progress meanwhile"
    return ""


def _has_half_character(described: dict[str, Any]) -> bool:
    text = json.dumps(described, ensure_ascii=False)
    return text != without_half_characters(text)


def _functions(declared: list[Declared]) -> Iterator[ToolFunction]:
    tools = [ToolFunction(each) for each in declared]
    for tool in tools:
        checks = tuple(other for other in tools if other.declared.check is tool.declared.function)
        yield ToolFunction(tool.declared, checks) if checks else tool


def _declared_in(module: ModuleType) -> list[Declared]:
    """What the file declares, and what it imports by name from others; and the checks that these name."""
    own = [each for each in DECLARED if each.function.__module__ == module.__name__]
    imported = [found for value in vars(module).values() if (found := declared_of(value)) is not None]
    tools = [*own, *imported]
    checks = [_as_check(each.check) for each in tools if each.check is not None]
    every: list[Declared] = []
    for declared in [*tools, *checks]:
        if all(declared.function is not other.function for other in every):
            every.append(declared)
    return every


def _hidden_in(module: ModuleType) -> Iterator[Declared]:
    """What the file declares and nobody can call by its name: models would call it without what a decorator
    above the declaration does."""
    values = [*vars(module).values()]
    noted = [found for value in values if (found := noted_on(value)) is not None]
    for each in DECLARED:
        function, taken = each.function, vars(module).get(each.name)
        if any(value is function for value in values):
            continue
        is_replaced = function.__module__ == module.__name__ and function.__qualname__ == each.name
        if each in noted or (is_replaced and callable(taken) and noted_on(taken) is None):
            yield each


def _as_check(function: Any) -> Declared:
    return noted_on(function) or Declared(function, {"readOnlyHint": True}, is_check=True)
