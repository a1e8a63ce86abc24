"""The lines of names and of the arguments of calls in a file."""

import ast
from collections.abc import Iterator
from pathlib import Path

from mesh.agents.objects import Expression


def lines_of_names(code: str) -> dict[str, int]:
    """The line on which each name of a file was last assigned, at its top level."""
    found = {}
    for statement in ast.parse(code).body:
        has_own_names = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in () if has_own_names else ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = node.lineno
    return found


class CallLines:
    """The calls in a file."""

    def __init__(self, code: str, path: Path) -> None:
        self._path = str(path)
        calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
        self._calls = {
            (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset): call for call in calls
        }

    def of(self, expression: Expression | None) -> Iterator[tuple[str, int]]:
        """Yields the line of a call, under the empty name, and of its arguments."""
        if expression is None or expression.file != self._path:
            return
        yield "", expression.line
        call = self._calls.get(expression[1:])
        for argument in call.keywords if call else ():
            if argument.arg:
                yield argument.arg, argument.lineno
