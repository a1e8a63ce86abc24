"""Finds the lines of functions, arguments and classes in a Python file."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceLines:
    """The lines of one file. What is in another file has line 1."""

    def __init__(self, code: str, path: str) -> None:
        nodes = [*ast.walk(ast.parse(code))]
        self._path = path
        self._functions = {_starts(node): node for node in nodes if isinstance(node, _Function)}
        self._classes = {node.name: node.lineno for node in nodes if isinstance(node, ast.ClassDef)}

    def function(self, function: Callable[..., Any], argument: str = "") -> int:
        """The line of a function's ``def``, or that of one of its arguments."""
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None or code.co_filename != self._path or code.co_firstlineno not in self._functions:
            return 1
        node = self._functions[code.co_firstlineno]
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [each for each in (node.args.vararg, node.args.kwarg) if each]
        return next((each.lineno for each in every if each.arg == argument), node.lineno)

    def class_(self, name: str) -> int:
        """The line of a class."""
        return self._classes.get(name, 1)


def _starts(node: _Function) -> int:
    """The line of the first decorator, with which the code of a function begins."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])
