"""The functions of one file of tools, and what is wrong with them."""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

from mesh.config.cross_checks import BUILT_IN_TOOLS
from mesh.mcp.meta import CHECKED_BY, IS_CHECK
from mesh.tools.arguments import Arguments, UnusableArgument
from mesh.tools.declare import DECLARED, Declared, declared_of


class FileProblem(NamedTuple):
    """Something wrong in a file, at a line that counts from 1."""

    line: int
    message: str


@dataclass(frozen=True)
class ToolFunction:
    """A function that a file offers."""

    declared: Declared

    @property
    def name(self) -> str:
        return self.declared.name

    @cached_property
    def arguments(self) -> Arguments:
        """Raises `UnusableArgument`."""
        return Arguments(self.declared.function)

    def described(self) -> dict[str, Any]:
        """The tool as MCP lists it."""
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


class ToolFile:
    """The functions of a module."""

    def __init__(self, module: ModuleType, code: str) -> None:
        self._tree = ast.parse(code)
        self.functions = [ToolFunction(each) for each in _declared_in(module)]

    def problems(self) -> Iterator[FileProblem]:
        """Yields what is wrong, function by function."""
        first: dict[str, int] = {}
        for function in self.functions:
            line = self.line(function.declared.function)
            if function.name in first:
                before = first[function.name]
                yield FileProblem(line, f"{function.name}: a second tool of this name; see line {before}")
            elif function.name in BUILT_IN_TOOLS:
                yield FileProblem(line, f"{function.name}: is the name of a built-in tool; choose another")
            elif not function.name.isascii():
                yield FileProblem(line, f"{function.name}: a tool's name has letters from A to Z only")
            first.setdefault(function.name, line)
            yield from self._argument_problems(function, line)

    def line(self, function: Callable[..., Any], argument: str = "") -> int:
        """The line of a function's ``def``, or that of one of its arguments; 1 if it is in another file."""
        code = getattr(inspect.unwrap(function), "__code__", None)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _starts(node) == (
                code and code.co_firstlineno
            ):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                every += [each for each in (node.args.vararg, node.args.kwarg) if each]
                return next((each.lineno for each in every if each.arg == argument), node.lineno)
        return 1

    def line_of_class(self, name: str) -> int:
        """The line of a class; 1 if it is in another file."""
        classes = (node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef))
        return next((node.lineno for node in classes if node.name == name), 1)

    def _argument_problems(self, function: ToolFunction, line: int) -> Iterator[FileProblem]:
        try:
            function.described()
        except UnusableArgument as problem:
            at = self.line(function.declared.function, problem.argument) if problem.argument else line
            where = f"{function.name}: {problem.argument}".removesuffix(": ")
            yield FileProblem(at, f"{where}: {problem}")


def _starts(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _declared_in(module: ModuleType) -> list[Declared]:
    """What the file declares, and what it imports by name from others; and the checks that these name."""
    own = [each for each in DECLARED if each.function.__module__ == module.__name__]
    imported = [
        found for value in vars(module).values() if (found := declared_of(value)) and found not in own
    ]
    every = [*own, *imported]
    for each in [*every]:
        if each.check is not None and declared_of(each.check) is None:
            every.append(Declared(each.check, {"readOnlyHint": True}, is_check=True))
    return every
