"""The lines of names and of the arguments of calls in a Python file, and what pydantic refused of them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from mesh.config.problem_texts import problems_of, spelled
from mesh.config.yaml_tree import Loc


class Expression(NamedTuple):
    """The expression that made an object: its file, and the positions of its code there."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int


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


def expression_at(frame: FrameType, instruction: int) -> Expression | None:
    """Returns the expression that an instruction of a frame evaluates."""
    positions = [*frame.f_code.co_positions()][instruction // 2]
    if any(each is None for each in positions):
        return None
    return Expression(frame.f_code.co_filename, *(each or 0 for each in positions))


def refused_arguments(
    error: ValidationError, model: type[BaseModel], code: str, path: Path
) -> list[tuple[int, str]]:
    """What a model refused of a call in a file, in the order of its lines: (line, ``Agent(promt): …``)."""
    lines = dict(CallLines(code, path).of(_last_expression(error, path)))
    found: dict[tuple[int, str], None] = {}
    for each in error.errors(include_url=False, include_context=True):
        for loc, message in problems_of([each], model, _at(each["loc"], each["input"])):
            line = lines.get(str(loc[0]) if loc else "", lines.get("", 1))
            found[line, f"{error.title}({spelled(loc)}): {message}"] = None
    return sorted(found)


def _last_expression(error: BaseException, path: Path) -> Expression | None:
    """The last one of a file on the way to an error."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = expression_at(trace.tb_frame, trace.tb_lasti)
        trace = trace.tb_next
    return found


def _at(loc: Loc, value: Any) -> Any:
    """A value that has another one at a location."""
    for key in reversed(loc):
        value = {key: value}
    return value
