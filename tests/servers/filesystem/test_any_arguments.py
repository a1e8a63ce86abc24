"""Whatever the arguments of a call are, the answer is a result or an error in words."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.schemas import NAMES, TOOLS
from tests.servers.filesystem.world import World

PROPERTIES: dict[str, dict[str, Any]] = {
    str(tool["name"]): tool["inputSchema"]["properties"] for tool in TOOLS
}
HOSTILE = ["\0", "\ud800", "a\nb", "\x1b[2J", "..", "[", "{a,b", "**", "(", "\\", "-e", "--pre=sh", "é", ""]
PATHS = st.sampled_from(["a", "d", "d/b", ".", "latin", "binary", "link", "new/x", *HOSTILE])
TEXTS = st.one_of(
    PATHS,
    st.text(st.characters(), max_size=20),
    st.sampled_from(["one", "ü\0", "€", "@@ -1 +1 @@\n-one\n+two\n", "absent", "..", "a..b"]),
)
EDITS = st.lists(
    st.fixed_dictionaries({"old": TEXTS, "new": TEXTS}, optional={"all": st.booleans()}), max_size=3
)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), TEXTS, st.lists(TEXTS, max_size=2)
)


def values(name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if name == "edits":
        return EDITS
    if name.endswith("path"):
        return PATHS
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": TEXTS,
        "boolean": st.booleans(),
        "integer": st.integers(-1, 2**53) | st.integers(0, 40),
        "number": st.floats(0.001, 400),
    }
    return kinds[schema["type"]]


def arguments(tool: str) -> st.SearchStrategy[dict[str, Any]]:
    fitting = {name: values(name, schema) for name, schema in PROPERTIES[tool].items() if "root" not in name}
    return st.fixed_dictionaries({}, optional={name: some | ANYTHING for name, some in fitting.items()}) | (
        st.fixed_dictionaries({}, optional=fitting)
    )


@pytest.mark.parametrize("tool", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_call_is_answered(tool: str, data: st.DataObject) -> None:
    answered(tool, data.draw(arguments(tool)))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_every_text_of_a_call_may_be_hostile(hostile: str) -> None:
    for tool in NAMES:
        schema = {name: each for name, each in PROPERTIES[tool].items() if each.get("type") == "string"}
        usual = {"path": "a", "pattern": "x", "content": "x", "source_path": "a", "dest_path": "n"}
        fitting = {name: text for name, text in usual.items() if name in PROPERTIES[tool]}
        for name in [*schema, "algorithm", "mode", hostile]:
            answered(tool, {**fitting, name: hostile})
    answered("patch_file", {"path": "a", "edits": [{"old": "one", "new": hostile}]})
    answered("patch_file", {"path": "a", "patch": f"@@ -1 +1 @@\n-one\n+{hostile}\n"})
    answered(hostile, {})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused(number: float) -> None:
    for tool in ("grep", "glob"):
        said = answered(tool, {"pattern": "x", "timeout_seconds": number})
        assert said == "an argument is not a number (NaN), or is infinite"


def answered(tool: str, arguments: dict[str, Any]) -> str:
    """What is said to a call, which is always something."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), opening.by_kernel)
        (world.ws / "d").mkdir()
        (world.ws / "d/b").write_text("one\ntwo\n")
        (world.ws / "a").write_text("one\ntwo\n")
        (world.ws / "latin").write_bytes("ü\n".encode("latin-1"))
        (world.ws / "binary").write_bytes(b"\0\1")
        (world.ws / "link").symlink_to("d/b")
        answer = world.server.answer(tool, arguments, TimeLimit(30))
        said = answer.value if answer.failed else json.dumps(answer.value, ensure_ascii=False)
        assert said
        assert said.encode()
        assert folder not in said
        assert (world.outside / "secret").read_text() == "the secret\n"
        world.close()
    return str(said)
