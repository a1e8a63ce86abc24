"""What is in a file, and what is wrong in it, with the line."""

from pathlib import Path
from textwrap import dedent

import pytest

from mesh.config.files import Description, FileText, describe
from tests.tools.serving import IMPORTS


def line_of(code: str, start: str) -> int:
    return (IMPORTS + code).splitlines().index(next(x for x in code.splitlines() if x.startswith(start))) + 1


def described(code: str, path: str = "/nowhere/shop.py") -> Description:
    return describe(FileText(path, IMPORTS + dedent(code)), {})


@pytest.mark.parametrize(
    ("code", "line", "problem"),
    [
        (
            "@tool\ndef refund(order):\n    pass",
            3,
            "refund: order: has no type; write one, such as order: str",
        ),
        (
            "@tool\ndef refund(\n    order: str,\n    ctx,\n):\n    pass",
            5,
            "refund: ctx: has no type; write ctx: Context, with Context from mesh.tools",
        ),
        (
            "@tool(\n    readonly=True,\n)\ndef pay() -> None: ...",
            2,
            "@tool: unknown argument readonly; did you mean read_only?",
        ),
        (
            "@tool\nasync def pages(n: int):\n    yield n",
            3,
            "pages: yields its result (a generator); return all of it at once,",
        ),
        (
            "@tool(\n    destructive=True\n)\nasync def refund(\n    order: str,\n    *rest: int\n): ...",
            7,
            "refund: rest: *rest has no usable type; give each argument a name and a type",
        ),
        (
            "@tool\ndef pay(a: int) -> None: ...\n\n@tool\ndef pay(a: int) -> None: ...",
            6,
            "pay: a second tool of this name; the first is on line 3",
        ),
        (
            "@tool\ndef ask_user(a: int) -> None: ...",
            3,
            "ask_user: is the name of a built-in tool; choose another",
        ),
        (
            "@tool\ndef payé(a: int) -> None: ...",
            3,
            "payé: a tool's name is 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
        ),
        (
            "tool(lambda: 1)",
            1,
            "<lambda>: a tool's name is 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
        ),
        (
            "def pay() -> None: ...\npay.__name__ = 'p' * 129\ntool(pay)",
            2,
            "p" * 129 + ": a tool's name is 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
        ),
        (
            "@tool\ndef pay(a: str = '\\udce9') -> None:\n    pass",
            3,
            "pay: says something that has half a character (a lone surrogate); write the whole one",
        ),
        (
            "@tool\ndef pay() -> None:\n    'Pays caf\\udce9.'",
            3,
            "pay: says something that has half a character (a lone surrogate); write the whole one",
        ),
        (
            "@tool\ndef pay(a: int) -> Nothing: ...",
            3,
            "cannot be imported:\n    Traceback (most recent call last):",
        ),
        (
            "class Shop:\n    @tool\n    def pay(self) -> None: ...",
            4,
            "pay: self: a method cannot be a tool; write a function outside of the class",
        ),
        ("x = [\n", 2, "cannot be imported:\n"),
        ("import none_such", 2, "cannot be imported:"),
        (
            "@check\ndef polite(output: str, b: str) -> bool: ...",
            3,
            "polite: a check gets output and request, and nothing for b; "
            "expected (output: str) -> bool | str",
        ),
        (
            "@check\ndef polite(request: str) -> bool: ...",
            3,
            "polite: a check takes the answer as output; expected (output: str) -> bool | str",
        ),
        (
            "@check\ndef polite(output: str) -> int: ...",
            3,
            "polite: a check returns True, or a text that says what is wrong; "
            "expected (output: str) -> bool | str",
        ),
        (
            "def was(other: str) -> str: ...\n\n@tool(check=was)\ndef pay(a: int) -> None: ...",
            2,
            "was: other is no argument of pay, whose outcome it checks; expected those of pay",
        ),
        (
            "def was(a: str) -> str: ...\n\n@tool(check=was)\ndef pay(a: int) -> None: ...",
            2,
            "was: a has another type than in pay, whose outcome it checks",
        ),
        (
            "def was(a: int) -> bool: ...\n\n@tool(check=was)\ndef pay(a: int) -> None: ...",
            2,
            'was: it returns no outcome; expected "applied", "not_applied" or "unknown"',
        ),
        *(
            (
                f"@tool{hints}\ndef was() -> str: ...\n\n@tool(check=was)\ndef pay() -> None: ...",
                3,
                "was: may change something, and finds out what came of pay; a check only reads (read_only=",
            )
            for hints in ("", "(destructive=True)", "(destructive=False, idempotent=True)")
        ),
    ],
)
def test_what_is_wrong_in_a_file_has_its_line(code: str, line: int, problem: str) -> None:
    [found] = described(code).problems
    assert (found.path, found.line) == ("/nowhere/shop.py", line)
    assert found.message.startswith(problem)


def test_a_file_that_does_not_import_shows_the_end_of_the_traceback() -> None:
    [found] = described("def total(n: int) -> float:\n    return 1 / n\n\nTOTAL = total(0)").problems
    assert found.line == 3
    assert found.message.splitlines()[-4:] == [
        '      File "/nowhere/shop.py", line 3, in total',
        "        return 1 / n",
        "               ~~^~~",
        "    ZeroDivisionError: division by zero",
    ]


def test_a_tool_that_only_reads_may_check_outcomes() -> None:
    code = (
        "@tool(read_only=True)\ndef was(a: int) -> str: ...\n\n@tool(check=was)\ndef pay(a: int) -> None: ..."
    )
    assert described(code).problems == ()


def test_a_decorator_may_collect_what_a_function_yields() -> None:
    code = """
        from functools import wraps

        def collected(function):
            @wraps(function)
            def collect(n: int) -> list[int]:
                return list(function(n))
            return collect

        @tool(read_only=True)
        @collected
        def pages(n: int):
            yield n
    """
    found = described(code)
    assert found.problems == ()
    assert [each["name"] for each in found.tools] == ["pages"]


GUARDED = """
from functools import cache, wraps

def guarded(function):
    @wraps(function)
    def guard(*given, **named):
        raise PermissionError("guarded")
    return guard

def bare(function):
    return lambda n: function(n)
"""


@pytest.mark.parametrize("around", ["guarded", "cache", "bare"])
@pytest.mark.parametrize("kind", ["tool(read_only=True)", "check"])
def test_a_decorator_above_a_declaration_is_refused_since_models_would_call_what_is_below(
    around: str, kind: str
) -> None:
    code = f"{GUARDED}\n@{around}\n@{kind}\ndef look(output: str) -> bool:\n    return True\n"
    found = described(code)
    [problem] = found.problems
    name = f"@{kind.partition('(')[0]}"
    what = f"look: its name is another function: a decorator above {name} made it, or a second def"
    assert (problem.line, problem.message) == (
        line_of(code, "def look"),
        f"{what}; put {name} above all other decorators",
    )
    assert found.tools == found.checks == ()


@pytest.mark.parametrize("around", ["guarded", "cache"])
def test_a_decorator_below_a_declaration_is_a_part_of_the_tool(around: str) -> None:
    code = f"{GUARDED}\n@tool(read_only=True)\n@{around}\ndef look(output: str) -> bool:\n    return True\n"
    assert described(code).problems == ()


def test_a_decorator_above_a_declaration_in_a_file_beside_it_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(
        f"from mesh.tools import tool\n{GUARDED}\n@guarded\n@tool\ndef pay(n: int) -> int:\n    return n\n"
    )
    [found] = described("from bank import pay as transfer", str(tmp_path / "shop.py")).problems
    assert found.message.startswith("pay: its name is another function")


def test_a_helper_that_is_made_around_a_tool_leaves_the_tool_as_it_is() -> None:
    code = f"{GUARDED}\n@tool\ndef pay(n: int) -> int:\n    return n\n\npays = guarded(pay)\n"
    found = described(code)
    assert (found.problems, [each["name"] for each in found.tools]) == ((), ["pay"])


def test_a_check_that_was_made_around_another_function_is_not_taken_for_that() -> None:
    code = f"{GUARDED}\n@tool\ndef wipe(n: int) -> str:\n    return ''\n\nwas = guarded(wipe)\n\n"
    code += "@tool(destructive=True, check=was)\ndef pay(n: int) -> str:\n    return ''\n"
    [found] = described(code).problems
    assert (found.line, found.message) == (
        line_of(code, "def pay"),
        "pay: its check is a function around wipe (functools.wraps); expected wipe itself, or a function of "
        "its own",
    )


@pytest.mark.parametrize(
    ("value", "kind"), [("partial(print)", "partial"), ("'was'", "str"), ("True", "bool")]
)
def test_a_check_that_is_no_function_is_told_at_the_line_of_its_tool(value: str, kind: str) -> None:
    [found] = described(
        f"from functools import partial\n@tool(check={value})\ndef pay() -> None: ..."
    ).problems
    assert found.line == 3
    assert found.message == f"@tool: check is a function with a name, and no {kind}; write one with def"


def test_a_decorator_that_is_misused_in_a_file_beside_it_is_told_there(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text("from mesh.tools import tool\n\n@tool(readonly=True)\ndef pay(): ...\n")
    [found] = described("import bank", str(tmp_path / "shop.py")).problems
    assert (found.path, found.line) == (str(tmp_path / "bank.py"), 3)
    assert found.message == "@tool: unknown argument readonly; did you mean read_only?"


def test_an_error_in_a_file_beside_it_is_told_there(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text("\nraise RuntimeError('closed')\n")
    [found] = described("import bank", str(tmp_path / "shop.py")).problems
    assert (found.path, found.line) == (str(tmp_path / "bank.py"), 2)
    assert found.message.endswith("RuntimeError: closed")


def test_tools_that_a_file_imports_by_name_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(
        "from mesh.tools import tool\n@tool\ndef pay(a: int) -> None: ...\n@tool\ndef other() -> None: ...\n"
    )
    found = described("from bank import pay\n@tool\ndef mine() -> None: ...", str(tmp_path / "shop.py"))
    assert found.problems == ()
    assert [each["name"] for each in found.tools] == ["mine", "pay"]


def test_a_check_of_an_outcome_is_offered_without_a_decorator_and_may_take_fewer_arguments() -> None:
    code = """
        def was_paid(a: int, ctx: Context) -> str: ...

        @tool(destructive=True, check=was_paid)
        def pay(a: int, b: int) -> None: ...

        @tool(destructive=True, check=was_paid)
        def pay_again(a: int) -> None: ...
    """
    found = described(code)
    assert found.problems == ()
    assert [each["_meta"] for each in found.tools] == [{"mesh/checkedBy": "was_paid"}] * 2
    [check] = found.checks
    assert (check["name"], check["_meta"]) == ("was_paid", {"mesh/check": True})
    assert "additionalProperties" not in check["inputSchema"]


def test_annotations_may_be_texts() -> None:
    code = "from __future__ import annotations\nfrom pydantic import BaseModel\n" + IMPORTS
    code += (
        "@tool\ndef pay(a: list[Money], ctx: Context) -> None: ...\nclass Money(BaseModel):\n    cents: int"
    )
    found = describe(FileText("/nowhere/shop.py", code), {})
    assert found.problems == ()
    [argument] = found.tools[0]["inputSchema"]["properties"].values()
    assert argument == {"type": "array", "items": {"$ref": "#/$defs/Money"}}


@pytest.mark.parametrize("name", ["json.py", "mesh.py", "two words.py", "calendar.py"])
def test_a_file_may_have_the_name_of_another_module(tmp_path: Path, name: str) -> None:
    found = described("import json, mesh.tools\n@tool\ndef pay(a: int) -> None: ...", str(tmp_path / name))
    assert (found.problems, len(found.tools)) == ((), 1)


@pytest.mark.parametrize("name", ["email.py", "calendar.py", "http.py", "csv.py"])
def test_files_that_have_the_name_of_a_module_of_python_hide_it_from_nobody(
    tmp_path: Path, name: str
) -> None:
    for file in (name, "shop.py"):
        (tmp_path / file).write_text(IMPORTS + "@tool\ndef pay(a: int) -> None: ...")
    code = "import urllib.request, http.cookiejar\n@tool\ndef pay(a: int) -> None: ..."
    for file in (name, "shop.py"):
        found = described(code, str(tmp_path / file))
        assert (found.problems, len(found.tools)) == ((), 1)


def test_a_file_that_has_the_name_of_a_package_hides_it_from_nobody(tmp_path: Path) -> None:
    code = "import httpx\nhttpx.AsyncClient\n@tool\ndef pay(a: int) -> None: ..."
    (tmp_path / "httpx.py").write_text(IMPORTS + code)
    found = described(code, str(tmp_path / "httpx.py"))
    assert (found.problems, len(found.tools)) == ((), 1)


@pytest.mark.parametrize("code", ["from email import send", "import email\nemail.send", "import email.send"])
def test_a_file_that_another_module_hides_is_named(tmp_path: Path, code: str) -> None:
    (tmp_path / "email.py").write_text("def send() -> None: ...\n")
    [found] = described(code, str(tmp_path / "shop.py")).problems
    assert (found.path, found.line) == (str(tmp_path / "shop.py"), 1 + len(code.splitlines()))
    hidden = "import email finds the module of the standard library, and not"
    assert found.message.endswith(f"{hidden} {tmp_path / 'email.py'}; rename this file")


def test_what_a_file_lacks_for_another_reason_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text("import email\n")
    [found] = described("from bank import pay", str(tmp_path / "shop.py")).problems
    assert "rename" not in found.message
