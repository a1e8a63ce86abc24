"""Files as text: encoding, byte order mark, and line endings. Pure."""

import codecs
from dataclasses import dataclass

BINARY_WITHIN = 8192
"""A NUL in as many bytes at the beginning makes a file binary, unless a byte order mark says otherwise."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with the same bytes
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class TextForm:
    """How a text is written as bytes."""

    encoding: str = "utf-8"
    mark: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.encoding} with byte order mark" if self.mark else self.encoding

    @property
    def is_wide(self) -> bool:
        """Whether a line feed is more than one byte."""
        return self.encoding.startswith(("utf-16", "utf-32"))

    def decode(self, content: bytes) -> str:
        """Raises `UnicodeDecodeError`."""
        return content.removeprefix(self.mark).decode(self.encoding)

    def encode(self, text: str) -> bytes:
        """Raises `UnicodeEncodeError`."""
        return self.mark + text.encode(self.encoding)


_PLAIN = TextForm()


def form_of(head: bytes, *, is_whole: bool) -> TextForm | None:
    """The form of a file that begins with ``head``; None if it is binary. What is no UTF-8 is taken for
    Latin-1, which has a character for each byte."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            form = TextForm(encoding, mark)
            return form if _is(head, form, is_whole) else None
    if b"\0" in head[:BINARY_WITHIN]:
        return None
    return _PLAIN if _is(head, _PLAIN, is_whole) else TextForm("latin-1")


def _is(head: bytes, form: TextForm, is_whole: bool) -> bool:
    text = head.removeprefix(form.mark)
    try:
        if is_whole:
            text.decode(form.encoding)
        else:
            codecs.getincrementaldecoder(form.encoding)().decode(text)
    except UnicodeDecodeError:
        return False
    return True


def line_ending(text: str) -> str:
    """Of a text: ``lf``, ``crlf``, ``mixed``, or ``none``."""
    if "\r" not in text:
        return "lf" if "\n" in text else "none"
    pairs = text.count("\r\n")
    feeds = text.count("\n") - pairs
    if pairs and feeds:
        return "mixed"
    return "crlf" if pairs else "lf" if feeds else "none"


def like(text: str, present: str) -> str:
    """A text with the line endings of the one that it replaces, if that has one kind of them and the text
    has line feeds only."""
    if line_ending(present) == "crlf" and "\r" not in text:
        return text.replace("\n", "\r\n")
    return text
