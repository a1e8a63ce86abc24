"""What a call returns: logs, values and errors."""

import json

import pytest

from mesh.python.interpreter import Interpreter
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind
from tests.python.world import Forks, ended, interpreter_in


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 + 1", "Result: 2"),
        ("x = 2", "(no return value)"),
        ("", "(no return value)"),
        ("None", "(no return value)"),
        ("print('a')\n'ü'", 'Logs:\na\n\nResult: "ü"'),
        ("import sys\nprint('err', file=sys.stderr)", "Logs:\nerr\n\n(no return value)"),
        ("import os\nos.write(1, b'raw')\n{'a': [1, None]}", 'Logs:\nraw\n\nResult: {"a": [1, null]}'),
        ("{3}", "Result: [3]"),
        ("float('nan')", 'Result: "nan"'),
        ("{(1, 2): 3}", 'Result: "{(1, 2): 3}"'),
        ("class A:\n    def __repr__(self): return 'an A'\nA()", 'Result: "an A"'),
        ("import sys\nsys.exit()", "(no return value)"),
        ("def f(x):\n    return 1 / x\n\nf(0)",
            "Error: ZeroDivisionError: division by zero\n  line 4: f(0)\n  line 2, in f: return 1 / x"),
        ("print(1)\nf(", "Error: SyntaxError: '(' was never closed\n  line 2: f("),
        ("import json\njson.loads('{')", "Error: JSONDecodeError: Expecting property name enclosed in double "
            "quotes: line 1 column 2 (char 1)\n  line 2: json.loads('{')"),
        ("raise SystemExit('bye')", "Error: SystemExit: bye\n  line 1: raise SystemExit('bye')"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            "Error: E: (its text cannot be told: ValueError)\n  line 3: raise E"),
        ("import os\nos._exit(3)",
            "Error: the process that ran the code ended without a result, with status 3"),
        ("import os\nos.abort()", "Error: the process that ran the code was ended by SIGABRT"),
        ("input()", "Error: EOFError: EOF when reading a line\n  line 1: input()"),
        ("__name__", 'Result: "__main__"'),
        ("'\\ud800'", 'Result: "?"'),
    ],
)  # fmt: skip
async def test_the_text_of_a_result(interpreter: Interpreter, code: str, text: str) -> None:
    assert (await ended(interpreter, code)).text == text


async def test_an_error_far_down_is_told_with_its_first_and_last_lines(interpreter: Interpreter) -> None:
    text = (await ended(interpreter, "def f(n):\n    return f(n + 1)\nf(0)")).text
    assert text.startswith("Error: RecursionError: maximum recursion depth exceeded")
    assert text.count("\n") == 10


async def test_of_long_logs_the_beginning_and_the_end_are_kept(interpreter: Interpreter) -> None:
    logs = (await ended(interpreter, "print('begin', 'x' * 100_000, 'end')")).logs
    assert logs.startswith("begin x")
    assert logs.endswith("x end\n")
    assert "bytes are left out here" in logs
    assert len(logs) < 2_100


async def test_a_long_value_is_cut(interpreter: Interpreter) -> None:
    value = (await ended(interpreter, "'x' * 300_000")).value or ""
    assert value.endswith("[cut: 300002 characters in all]")


async def test_what_was_written_before_an_end_by_force_is_kept(one_kind: Kind, launcher: Launcher) -> None:
    with interpreter_in(one_kind, launcher, time_s=5) as interpreter:
        end = await ended(interpreter, "print('before')\nwhile True: pass")
    assert end.text == "Logs:\nbefore\n\nError: it ran longer than 5 s (limits.python_time_s)"


async def test_forks_answer_in_the_order_of_their_handles(interpreter: Interpreter) -> None:
    code = "a, b = fork('a'), fork('b')\n[a, b, wait(b), wait([b, a]), wait([])]"
    assert json.loads((await ended(interpreter, code)).value or "") == [
        *(1, 2, "about b", ["about b", "about a"]), [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("wait(fork('fail'))", [1, "about fail", "failed", "fork 1 failed: about fail"]),
        ("wait([fork('a'), fork('delete')])",
            [2, "about delete", "deleted", "fork 2 was deleted: about delete"]),
    ],
)  # fmt: skip
async def test_a_fork_without_an_answer_raises(interpreter: Interpreter, code: str, value: object) -> None:
    raising = (
        f"try:\n    {code}\nexcept ForkFailed as e:\n    found = [e.handle, e.text, e.status, str(e)]\nfound"
    )
    assert json.loads((await ended(interpreter, raising)).value or "") == value


async def test_what_has_not_ended_has_none_in_place_of_an_answer(interpreter: Interpreter) -> None:
    code = (
        "a, b = fork('never'), fork('b')\n[wait([a, b], any=True), wait([a], timeout=1), wait(a, timeout=1)]"
    )
    assert (await ended(interpreter, code)).value == '[[null, "about b"], [null], null]'


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("wait(7)", "ValueError: No fork with handle 7"),
        ("wait([fork('a'), 0])", "ValueError: No fork with handle 0"),
        ("wait('1')", "TypeError: the handle of a fork is a number, not str"),
        ("fork(1)", "TypeError: the prompt of a fork is a text, not int"),
        ("fork(' ')", "ValueError: the prompt of a fork has from 1 to 100,000 characters"),
        ("fork('x' * 100_001)", "ValueError: the prompt of a fork has from 1 to 100,000 characters"),
        ("wait(fork('a'), timeout=-1)", "ValueError: the timeout is a number of seconds, from 0"),
        ("fork('refuse')", "ForkRefused: no more forks today"),
    ],
)
async def test_what_cannot_be_asked_raises(interpreter: Interpreter, code: str, error: str) -> None:
    end = await ended(interpreter, code)
    assert end.error.splitlines()[0] == error


async def test_a_fork_that_is_refused_takes_no_handle(interpreter: Interpreter) -> None:
    host = Forks()
    code = "try:\n    fork('refuse')\nexcept ForkRefused:\n    pass\nfork('a')"
    assert (await ended(interpreter, code, host)).value == "1"
