"""Previews: what a call would do, as the tool says when it is called so that it changes nothing. Pure.

A tool of a server that is trusted says which added arguments do that (``_meta["mesh"]["preview"]``); for
others, ``previews`` of the server's config says it. The result of such a call is an object as `Preview`; any
other text is shown as it is. What it expects to be there goes with the call as the argument `EXPECT`.
"""

import msgspec

from mesh.core.events import Preview
from mesh.mcp.port import ToolOutcome

EXPECT = "expect"
MAX_BYTES = 64 << 10
"""Of the text; the rest is shown on request."""
_MOST_FILES = 1_000


def preview_in(outcome: ToolOutcome) -> Preview:
    """The preview that a call returned."""
    try:
        found = msgspec.json.decode(outcome.content, type=Preview)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        is_diff = outcome.content.lstrip().startswith(("--- ", "diff ", "```diff"))
        found = Preview("diff" if is_diff else "text", outcome.content)
    text = found.text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
    is_cut = len(text) < len(found.text)
    return msgspec.structs.replace(
        found,
        text=text,
        cut=found.cut or is_cut,
        next_offset=len(text) if is_cut else found.next_offset,
        files=found.files[:_MOST_FILES],
    )
