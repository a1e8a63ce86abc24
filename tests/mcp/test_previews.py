"""What a server says of its tools for previews: believed of trusted ones, or said in a config."""

from typing import Any

import pytest

from mesh.mcp.connection import ReceivedTool
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.previews import MAX_BYTES, preview_in
from tests.worlds.tool_servers import Spec

ABOUT = {
    "paths": ["path", {"path": "to", "root": "to_root"}],
    "preview": {"dry_run": True},
    "check": {"check": True},
    "rest": "offset",
    "risk": "low",
    "ask": True,
}


def received(server: Spec, about: Any = ABOUT) -> Tool:
    tool = {"name": "edit", "inputSchema": {"type": "object"}, "_meta": {"mesh": about}}
    return ReceivedTool.model_validate(tool).resolved(server)


def test_what_a_trusted_server_says_counts() -> None:
    about = received(Spec(is_trusted=True)).about
    assert (about.paths, about.root_arguments) == (("path", "to"), ("to_root",))
    assert (about.preview, about.check, about.rest) == (
        {"dry_run": True},
        {"check": True},
        "offset",
    )
    assert (about.risk, about.must_ask) == ("low", True)


def test_what_another_server_says_does_not() -> None:
    about = received(Spec()).about
    assert (about.paths, about.root_arguments, about.preview, about.check) == (
        (),
        (),
        {},
        {},
    )
    assert (about.rest, about.risk, about.must_ask) == ("", None, False)


def test_the_config_says_how_a_server_previews_that_is_not_trusted() -> None:
    about = received(Spec(previews={"edit": {"dryRun": True}, "other": {}})).about
    assert (about.preview, about.check) == ({"dryRun": True}, {})


@pytest.mark.parametrize("about", [None, "x", [], {"preview": 1, "check": "x", "rest": {}, "paths": 3}])
def test_another_type_counts_as_nothing_said(about: Any) -> None:
    about = received(Spec(is_trusted=True), about).about
    assert (about.paths, about.preview, about.check, about.rest) == ((), {}, {}, "")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("--- a\n+++ b\n", "diff"), ("```diff\n- a", "diff"), ("3 files", "text"), ('{"kind": 1}', "text")],
)
def test_a_preview_that_is_no_object_is_shown_as_it_is(text: str, kind: str) -> None:
    found = preview_in(ToolOutcome(text))
    assert (found.kind, found.text, found.cut) == (kind, text, False)


def test_a_preview_is_bounded_and_says_where_it_goes_on() -> None:
    found = preview_in(ToolOutcome("é" * MAX_BYTES))
    assert (found.cut, len(found.text), found.next_offset) == (True, MAX_BYTES // 2, MAX_BYTES // 2)
