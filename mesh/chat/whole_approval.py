"""All of an approval: the whole preview first, then its arguments. Pure, but for `MorePreview`."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from mesh.chat.card import rows_in_full
from mesh.chat.card_rows import MORE, ScreenSize, framed
from mesh.chat.policy_card import preview_head, preview_rows, reader_of
from mesh.chat.transcript import CardRow
from mesh.core.errors import MeshError
from mesh.core.events import ApprovalRequired, Preview
from mesh.display.policies import cut_by

MorePreview = Callable[[int], Awaitable[Preview]]
"""The rest of a preview, from a character on. Raises `MeshError`."""


async def all_rows(
    asked: ApprovalRequired, size: ScreenSize, more: MorePreview
) -> AsyncGenerator[CardRow, None]:
    """Yields every row of an approval. What was cut is asked for once the rows before it have been taken."""
    if asked.preview is not None:
        async for row in _preview(asked, asked.preview, size, more):
            yield row
    for row in rows_in_full(asked, size):
        yield row


async def _preview(
    asked: ApprovalRequired, preview: Preview, size: ScreenSize, more: MorePreview
) -> AsyncGenerator[CardRow, None]:
    for row in preview_head(asked, preview, size, is_whole=True):
        yield row
    reader, offset = reader_of(preview), -1
    while True:
        is_last = not _has_more(preview, offset)
        for row in preview_rows(reader, preview.text, size, is_last=is_last):
            yield row
        if is_last:
            break
        assert preview.next_offset is not None
        offset = preview.next_offset
        try:
            preview = await more(offset)
        except MeshError as problem:
            for row in framed(MORE, f"the rest cannot be shown: {problem}", "bad", size):
                yield row
            return
    if preview.cut:
        for row in framed(MORE, cut_by(asked), "bad", size):
            yield row


def _has_more(preview: Preview, offset: int) -> bool:
    """Whether there is more behind this piece, which begins at ``offset``; not where it makes no progress."""
    return preview.cut and preview.next_offset is not None and preview.next_offset > offset
