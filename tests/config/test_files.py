"""Files that a config names."""

import os
import re
from pathlib import Path

import pytest

from mesh.config.files import MAX_BYTES, Files, FileText, UnusableFile, describe
from mesh.config.model import Config, load, parse
from mesh.config.python_problems import NOTHING_DECLARED, python_problems
from mesh.core.errors import ConfigError

TOOLS = '''from mesh.tools import tool


@tool(read_only=True)
def orders(pattern: str = "") -> list[str]:
    """Lists ${HOME} orders."""
    return ["A-1"]
'''
CONFIG = "name: shop\nllm: {model: offline}\nmcp_servers:\n  - {name: shop, python: tools/shop.py}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/shop.py").write_text(TOOLS)
    (tmp_path / "agent.yaml").write_text(CONFIG)
    return tmp_path


def loaded(folder: Path) -> Config:
    return load(folder / "agent.yaml", {})


def refused(folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loaded(folder)
    return [problem.removeprefix(f"{folder}/") for problem in raised.value.problems]


def test_a_python_file_is_read_relative_to_the_config(folder: Path) -> None:
    python = loaded(folder).servers[0].python
    assert python is not None
    assert (python.file, python.path, python.code) == ("tools/shop.py", str(folder / "tools/shop.py"), TOOLS)


def test_its_text_belongs_to_the_digest_and_its_folder_does_not(folder: Path, tmp_path: Path) -> None:
    before = loaded(folder).digest
    moved = tmp_path / "elsewhere"
    (moved / "tools").mkdir(parents=True)
    for name in ("agent.yaml", "tools/shop.py"):
        (moved / name).write_bytes((folder / name).read_bytes())
    assert loaded(moved).digest == before
    (folder / "tools/shop.py").write_text(TOOLS + "# another line\n")
    assert loaded(folder).digest != before


def test_what_was_read_is_all_that_another_process_needs(folder: Path) -> None:
    first = loaded(folder)
    (folder / "tools/shop.py").unlink()
    again = parse(first.source, first.origin, {}, first.files)
    assert (again, again.digest, again.files) == (first, first.digest, first.files)


def test_a_config_without_its_files_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"mcp_servers\[0\]\.python: was not kept"):
        parse(CONFIG, "agent.yaml", {}, {})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("tools/none.py", r"{folder}/tools/none\.py cannot be read: No such file or directory"),
        ("tools", r"expected the path of a Python file, such as tools/shop\.py"),
        ("[a.py]", r"expected the path of a Python file, such as tools/shop\.py"),
        ("{file: a.py, path: a.py, code: x}", r"expected the path of a Python file, such as tools/shop\.py"),
        ("tools/large.py", r"{folder}/tools/large\.py is over 262,144 bytes.*"),
        ("tools/latin.py", r"{folder}/tools/latin\.py:2: not UTF-8 text.*"),
        ('"${NONE}"', r"the environment variable NONE is not set.*"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_problem_at_its_key(folder: Path, value: str, problem: str) -> None:
    (folder / "tools/large.py").write_text("#" * (MAX_BYTES + 1))
    (folder / "tools/latin.py").write_bytes(b"a = 1\nb = '\xe9'\n")
    (folder / "agent.yaml").write_text(CONFIG.replace("tools/shop.py", value))
    expected = problem.replace("{folder}", re.escape(str(folder)))
    [found] = refused(folder)
    assert re.fullmatch(rf"agent\.yaml:4: mcp_servers\[0\]\.python: {expected}", found), found


def test_a_python_file_excludes_the_other_kinds_of_server(folder: Path) -> None:
    (folder / "agent.yaml").write_text(CONFIG.replace("python:", "args: [x], url: 'http://x', python:"))
    why = "url and python exclude each other; expected one of them"
    assert refused(folder) == [f"agent.yaml:4: mcp_servers[0].python: {why}"]


def test_a_description_has_tools_checks_and_schemas() -> None:
    code = '''from pydantic import BaseModel
from mesh.tools import check, tool

class Order(BaseModel):
    total: int

@tool(destructive=True)
def refund(order: Order) -> None:
    """Pays."""

@check
def is_polite(output: str) -> bool | str:
    return True
'''
    found = describe(FileText("/nowhere/shop.py", code), {})
    assert found.problems == ()
    assert [(each["name"], each["line"], each["annotations"]) for each in found.tools] == [
        ("refund", 8, {"destructiveHint": True})
    ]
    assert [(each["name"], each["_meta"]) for each in found.checks] == [("is_polite", {"mesh/check": True})]
    assert found.schemas["Order"]["required"] == ["total"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os\nos._exit(3)", "cannot be imported: it exited with code 3"),
        (
            "import os\nos.abort()",
            "cannot be imported: it was killed by signal 6",
        ),
        ("import os\nprint('Oh.', flush=True)\nos._exit(0)", "it exited with code 0; its last words: Oh."),
    ],
)
def test_a_file_that_ends_its_process_is_a_problem(code: str, problem: str) -> None:
    [found] = describe(FileText("/nowhere/shop.py", code), {}).problems
    assert found.message.endswith(problem)


def test_a_file_that_uses_more_memory_than_a_tool_may_is_a_problem(folder: Path) -> None:
    (folder / "tools/shop.py").write_text(TOOLS + "x = bytearray(300 << 20)\n")
    (folder / "agent.yaml").write_text(CONFIG + "limits: {tool_memory_bytes: 268435456}\n")
    [found] = python_problems(loaded(folder))
    assert "shop.py:8: cannot be imported:" in found and found.endswith("MemoryError")


def test_a_type_of_a_file_whose_memory_is_over_the_bound_is_a_problem(folder: Path) -> None:
    (folder / "tools/shop.py").write_text(TOOLS + "x = bytearray(300 << 20)\n")
    limits = "limits: {tool_memory_bytes: 268435456}\n"
    (folder / "agent.yaml").write_text(
        CONFIG + limits + "agent: {name: a, type: llm, output_schema: tools/shop.py:X}\n"
    )
    [found] = refused(folder)
    assert found.endswith("MemoryError")


@pytest.mark.parametrize("part", ["output_schema: tools/shop.py:Order", "exit_when"])
def test_a_type_of_a_file_is_read_with_the_variables_of_the_server_of_this_file(
    folder: Path, part: str
) -> None:
    code = "import os\nfrom pydantic import BaseModel\nTOKEN = os.environ['TOKEN']\n"
    (folder / "tools/shop.py").write_text(code + TOOLS + "class Order(BaseModel):\n    total: int\n")
    server = "{name: shop, python: ./tools/shop.py, env: {TOKEN: '${SECRET}'}}"
    node = "{name: a, type: llm, output_schema: tools/shop.py:Order}"
    if part == "exit_when":
        node = (
            "{name: l, type: loop, exit_when: {schema: tools/shop.py:Order}, agents: [{name: a, type: llm}]}"
        )
    (folder / "agent.yaml").write_text(
        f"name: shop\nllm: {{model: offline}}\nmcp_servers: [{server}]\nagent: {node}\n"
    )
    config = load(folder / "agent.yaml", {"SECRET": "sesame"})
    assert "total" in str([*config.files.values()][-1].text)


@pytest.mark.parametrize(
    "goes_on",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()\n",
        "import atexit, time\natexit.register(time.sleep, 600)\n",
    ],
)
def test_a_file_whose_process_does_not_end_is_a_problem(
    goes_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.config.files.DESCRIBE_TIMEOUT_S", 20.0)
    [found] = describe(FileText("/nowhere/shop.py", goes_on + TOOLS), {}).problems
    assert found.message.startswith("it did not end within 20 s: the import started a thread, or registered")


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"A": "x\0y"}])
def test_variables_that_no_process_can_have_are_a_problem(env: dict[str, str]) -> None:
    [found] = describe(FileText("/nowhere/shop.py", TOOLS), env).problems
    assert found.message.startswith("cannot be run: its env has an ")


@pytest.mark.parametrize(
    "code",
    ["x = '" + "a" * 200_000, "raise ValueError('a' * 200_000)", "raise ValueError('a\\n' * 200_000)"],
)
def test_a_problem_is_told_in_a_few_short_lines(code: str) -> None:
    [found] = describe(FileText("/nowhere/shop.py", code), {}).problems
    assert found.message.startswith("cannot be imported:")
    assert len(found.message) < 4000


def test_a_config_that_is_a_named_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    (folder / "agent.yaml").unlink()
    os.mkfifo(folder / "agent.yaml")
    assert refused(folder) == ["agent.yaml:1: is a pipe; expected a file"]


def test_a_config_may_come_through_a_pipe_of_the_shell() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"name: shop\nllm: {model: offline}\n")
    os.close(writing)
    try:
        assert load(Path(f"/dev/fd/{reading}"), {}).name == "shop"
    finally:
        os.close(reading)


def test_a_file_that_writes_among_the_description_is_a_problem() -> None:
    code = "import os\nif os.fork():\n    os.wait()\n"
    [found] = describe(FileText("/nowhere/shop.py", code), {}).problems
    assert found.message == "cannot be imported: it exited with code 0"


@pytest.mark.parametrize("ends", ["raise ValueError(token)", "print(token, flush=True); os._exit(1)"])
def test_a_problem_shows_no_value_of_a_variable(ends: str) -> None:
    code = f"import os\ntoken = os.environ['TOKEN']\n{ends}\n"
    [found] = describe(FileText("/nowhere/shop.py", code), {"TOKEN": 'sec"ret-1234'}).problems
    assert "***" in found.message and "ret-1234" not in found.message


@pytest.mark.parametrize(
    "ends",
    [
        "raise ValueError(token)",
        "raise KeyError(token)",
        "raise ValueError(repr({'token': token}))",
        "import json; raise ValueError(json.dumps([token]))",
        "print(token, flush=True); os._exit(1)",
    ],
)
def test_a_problem_shows_no_line_of_a_value_of_several_lines(ends: str) -> None:
    code = f"import os\ntoken = os.environ['TOKEN']\n{ends}\n"
    key = "-----BEGIN KEY-----\nMIIEowIBAA\"KCAQEA\nhZ9'x\\\\k2Lq07\n-----END KEY-----\n"
    [found] = describe(FileText("/nowhere/shop.py", code), {"TOKEN": key}).problems
    assert "***" in found.message
    assert [each for each in ("MIIE", "KCAQ", "hZ9", "k2Lq", "BEGIN") if each in found.message] == []


def test_problems_of_python_files_have_their_lines(folder: Path) -> None:
    (folder / "tools/shop.py").write_text(TOOLS.replace("pattern: str", "pattern"))
    assert [*python_problems(loaded(folder))] == [
        f"{folder}/tools/shop.py:5: orders: pattern: has no type; write one, such as pattern: str"
    ]


MODELS = """from collections.abc import Callable
from pydantic import BaseModel

class Order(BaseModel):
    total: int

class Odd(BaseModel):
    run: Callable[[], int]

Total = int

def order(total: int) -> Order: ...
"""


@pytest.mark.parametrize(
    ("reference", "schema"),
    [
        ("order.json", {"type": "object"}),
        (
            "models.py:Order",
            {
                "type": "object",
                "title": "Order",
                "properties": {"total": {"type": "integer"}},
                "required": ["total"],
            },
        ),
        ("models.py:Total", {"type": "integer"}),
    ],
)
def test_a_schema_is_that_of_a_file_or_of_a_type_and_is_kept(
    tmp_path: Path, reference: str, schema: object
) -> None:
    (tmp_path / "order.json").write_text('{"type": "object"}')
    (tmp_path / "models.py").write_text(MODELS)
    files = Files(tmp_path)
    assert files.schema(("agent", "output_schema"), reference) == schema
    (tmp_path / "models.py").unlink()
    assert Files(tmp_path, files.used).schema(("agent", "output_schema"), reference) == schema


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("none.json", "none.json cannot be read: No such file or directory"),
        ("none.py:Order", "none.py cannot be read: No such file or directory"),
        ("bad.json", "bad.json:2: not valid JSON: Expecting value"),
        ("nan.json", "nan.json:1: not valid JSON: NaN is no JSON"),
        ("list.json", "list.json:1: expected a JSON object"),
        ("twice.json", "twice.json:3: type: written twice; first on line 2"),
        ("hidden.json", "hidden.json:1: it has an object with two members of the name '😀'"),
        ("pipe.json", "pipe.json is a pipe or a device; expected a file"),
        ("pipe.py:Order", "pipe.py is a pipe or a device; expected a file"),
        ("folder.json", "folder.json cannot be read: Is a directory"),
        ("models.py:Oder", "models.py:1: Oder: the file has no such type; did you mean Order?"),
        ("models.py:order", "models.py:12: order: is a function, and no type; did you mean Order?"),
        ("models.py:X", "models.py:1: X: the file has no such type; expected one of: Odd, Order"),
        ("models.py:Odd", "models.py:7: Odd: has no usable type: JSON Schema cannot express Odd"),
        ("broken.py:Order", "broken.py:1: cannot be imported:"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_with_file_and_line(
    tmp_path: Path, reference: str, problem: str
) -> None:
    (tmp_path / "bad.json").write_text('{\n"type": }')
    (tmp_path / "nan.json").write_text('{"minimum": NaN}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "twice.json").write_text('{\n\t"type": "object",\n\t"type": "array"}')
    (tmp_path / "hidden.json").write_text('{"\\ud83d\\ude00": 1, "😀": 2}')
    for name in ("pipe.json", "pipe.py"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(UnusableFile) as raised:
        Files(tmp_path).schema(("agent", "output_schema"), reference)
    assert str(raised.value).startswith(f"{tmp_path}/{problem}")


def test_a_device_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"^/dev/zero is a pipe or a device; expected a file$"):
        Files(tmp_path).schema(("agent", "output_schema"), "/dev/zero")


@pytest.mark.parametrize("reference", ["~no-such-user/order.json", "~no-such-user/models.py:Order"])
def test_a_home_that_does_not_exist_is_told(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UnusableFile, match=r"^begins with ~no-such-user, and there is no such home"):
        Files(tmp_path).schema(("agent", "output_schema"), reference)


@pytest.mark.parametrize("reference", ["Order", "models.Order", "models:Order"])
def test_a_name_alone_is_told_how_a_type_of_a_file_is_written(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UnusableFile, match=r"a type of a Python file \(tools/shop\.py:Order\)$"):
        Files(tmp_path).schema(("agent", "output_schema"), reference)


def test_a_name_that_is_too_long_for_a_file_is_a_name_alone(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"^is a name alone; expected a JSON Schema"):
        Files(tmp_path).schema(("agent", "output_schema"), "O" * 5_000)


@pytest.mark.parametrize("reference", ["models.py", "models.py:"])
def test_a_python_file_without_a_type_is_told_how_to_name_one(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UnusableFile, match=r"no type of it; expected models\.py:NAME"):
        Files(tmp_path).schema(("agent", "output_schema"), reference)


def test_a_file_may_have_a_name_that_could_be_that_of_a_type(tmp_path: Path) -> None:
    (tmp_path / "Order").write_text("{}")
    assert Files(tmp_path).schema(("agent", "output_schema"), "Order") == {}


def test_two_files_with_tools_of_one_name_are_a_problem(folder: Path) -> None:
    (folder / "tools/other.py").write_text(TOOLS)
    (folder / "agent.yaml").write_text(CONFIG + "  - {name: other, python: tools/other.py}\n")
    assert [*python_problems(loaded(folder))] == [
        f"{folder}/tools/other.py:5: orders: a second tool of this name; see {folder}/tools/shop.py:5"
    ]


def test_a_file_without_tools_is_a_problem(folder: Path) -> None:
    (folder / "tools/shop.py").write_text("x = 1\n")
    [found] = python_problems(loaded(folder))
    assert found.endswith(NOTHING_DECLARED)


def test_each_file_is_read_once_so_that_all_of_a_config_is_of_one_version(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"title": "first"}')
    files = Files(tmp_path)
    first = files.text(("one",), "a.json")
    file.write_text('{"title": "second"}')
    assert files.text(("two",), "./a.json") == first
    assert files.schema(("three",), str(file)) == {"title": "first"}
    assert Files(tmp_path, read=first).text(("four",), "a.json") == first
