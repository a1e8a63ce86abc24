"""What the decorators refuse."""

from typing import Any

import pytest

from mesh.tools import check, tool
from mesh.tools.declare import WrongDeclaration, declared_of


def pay() -> None: ...


class Bank: ...


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"readonly": True}, "unknown argument readonly; did you mean read_only?"),
        ({"destructiveHint": True}, "unknown argument destructiveHint; did you mean destructive?"),
        (
            {"retries": 3},
            "unknown argument retries; expected one of: check, destructive, idempotent, read_only",
        ),
        ({"name": "pay"}, "unknown argument name; its name is that of the function"),
        (
            {"description": "Pays."},
            "unknown argument description; its description is the docstring of the function",
        ),
        ({"read_only": "yes"}, "read_only is of the type str; expected True or False"),
        (
            {"read_only": True, "destructive": True},
            "a tool that is read_only cannot be destructive; say one of them",
        ),
        ({"check": "was_paid"}, "check is a function with a name, and no str; write one with def"),
    ],
)
def test_arguments_that_a_tool_has_not_are_told(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(WrongDeclaration) as refused:
        tool(**arguments)
    assert str(refused.value) == f"@tool: {problem}"


def test_a_check_takes_no_arguments() -> None:
    with pytest.raises(WrongDeclaration, match=r"^@check: unknown argument strict; it takes none$"):
        check(strict=True)  # type: ignore[call-overload]
    assert declared_of(check()(lambda output: True)) is not None


@pytest.mark.parametrize(("value", "kind"), [(Bank, "class"), (Bank(), "Bank"), ("pay", "str")])
def test_only_functions_are_declared(value: Any, kind: str) -> None:
    for decorator, name in ((tool, "tool"), (check, "check")):
        with pytest.raises(WrongDeclaration) as refused:
            decorator(value)
        assert str(refused.value) == f"@{name}: it goes before a function, and not before a {kind}"


def test_a_function_is_declared_once() -> None:
    tool(pay)
    with pytest.raises(WrongDeclaration, match=r"^@check: pay is declared twice; put one of @tool"):
        check(pay)
