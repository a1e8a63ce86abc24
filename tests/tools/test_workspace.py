"""What a tool is told of the workspace: its root, and which paths are safe."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.testing import FakeContext
from mesh.tools.workspace import Workspace
from tests.tools.serving import served

FILE = """
@tool(read_only=True)
def where(path: str, ctx: Context) -> list[str]:
    "Says where a path is."
    return [str(ctx.workspace.root), str(ctx.workspace.resolve(path)), str(ctx.workspace.is_safe(path))]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "ws"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "ws-2").mkdir()
    (inside / "out").symlink_to(tmp_path / "ws-2")
    (inside / "up").symlink_to("..")
    (inside / "in").symlink_to("sub")
    (inside / "loop").symlink_to("loop")
    return inside


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.txt", "a.txt"),
        ("sub/./a.txt", "sub/a.txt"),
        ("sub/../a.txt", "a.txt"),
        ("in/a.txt", "sub/a.txt"),
        (".", "."),
        ("", "."),
        ("%2e%2e/x", "%2e%2e/x"),
        ("..", None),
        ("../ws-2/x", None),
        ("../ws/a.txt", "a.txt"),
        ("out", None),
        ("out/x", None),
        ("up/ws-2", None),
        ("/etc/passwd", None),
        ("a\0b", None),
        ("x" * 5000, None),
    ],
)
def test_a_path_is_safe_if_it_leads_into_the_workspace(root: Path, path: str, found: str | None) -> None:
    workspace = Workspace(root)
    expected = None if found is None else workspace.root / found
    assert (workspace.resolve(path), workspace.is_safe(path)) == (expected, expected is not None)


def test_absolute_paths_are_safe_inside_and_what_is_no_path_is_not(root: Path) -> None:
    workspace = Workspace(root)
    assert workspace.resolve(root / "sub") == workspace.root / "sub"
    assert workspace.resolve(f"{root}-2/x") is None
    assert workspace.resolve(17) is None  # type: ignore[arg-type]


@given(
    path=st.text(max_size=60)
    | st.lists(st.sampled_from(["..", ".", "sub", "out", "up", "in", "x", ""])).map("/".join)
)
def test_whatever_is_resolved_is_below_the_root_and_has_no_link_on_its_way(
    tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    base = tmp_path_factory.mktemp("w")
    for name, target in (("out", "/etc"), ("up", ".."), ("in", "sub")):
        (base / name).symlink_to(target)
    found = Workspace(base).resolve(path)
    if found is not None:
        assert found == base.resolve() or base.resolve() in found.parents
        assert not any(
            part.is_symlink() for part in (found, *found.parents) if base.resolve() in part.parents
        )


def test_a_fake_context_has_a_workspace(root: Path) -> None:
    assert FakeContext(workspace=root).workspace.is_safe("a.txt")
    assert not FakeContext(workspace=root).workspace.is_safe("/etc")


async def test_a_tool_is_told_the_workspace_of_the_agent(tmp_path: Path, root: Path) -> None:
    expected = Workspace(root).resolve("in/a.txt")
    async with served(tmp_path, FILE, workspace=root) as session:
        outcome = await session.call("where", {"path": "in/a.txt"})
    assert json.loads(outcome.content) == [str(Workspace(root).root), str(expected), "True"]
