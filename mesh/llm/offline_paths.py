"""How the offline model finds files and edits in a sentence. Pure."""

import re
from typing import Any

from mesh.llm.offline_words import is_function_word, properties

_QUOTED = r"(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`)"
_AFTER_NOUN = re.compile(
    rf"\b(?:file|folder|directory)\s+(?:(?:called|named)\s+)?(?:{_QUOTED}|([^\s\"'`]+))", re.IGNORECASE
)
_REPLACE = re.compile(rf"\b(?:replace|change)\s+{_QUOTED}\s+(?:with|by|to|into)\s+{_QUOTED}", re.IGNORECASE)
_LOOKS_LIKE_A_PATH = re.compile(r"\.*\w[\w.-]*/[\w./-]*|\.{1,2}|\.\w[\w.-]*|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w*")
_ENDS_SENTENCE = ".,;:!?"


def is_path(key: str) -> bool:
    """Whether an argument sounds like the path of a file or a folder.

    >>> is_path("source_path"), is_path("name")
    (True, False)
    """
    return key.lower().endswith("path") or key.lower() in ("file", "filename", "folder", "directory")


def path_after_noun(text: str) -> str | None:
    """The path that follows the word "file" or "folder".

    >>> path_after_noun("read the file .env."), path_after_noun("list the folder .")
    ('.env', '.')
    """
    for *quoted, word in _AFTER_NOUN.findall(text):
        if path := "".join(quoted):
            return path
        if word and not is_function_word(bare := _without_end(word)):
            return bare
    return None


def path_like(text: str) -> str | None:
    """The first word outside of quotes that looks like a path.

    >>> path_like('replace "a.b" with "c" in src/cart.py.'), path_like("read .env"), path_like("hello there.")
    ('src/cart.py', '.env', None)
    """
    words = map(_without_end, re.sub(_QUOTED, " ", text).split())
    return next((word for word in words if _LOOKS_LIKE_A_PATH.fullmatch(word)), None)


def edits(text: str, schema: dict[str, Any]) -> list[dict[str, str]] | None:
    """What a sentence replaces with what, for an argument that is a list of edits: ``old`` and ``new``."""
    found = _REPLACE.findall(text)
    if not found or not {"old", "new"} <= properties(schema.get("items")).keys():
        return None
    return [{"old": "".join(groups[:3]), "new": "".join(groups[3:])} for groups in found]


def _without_end(word: str) -> str:
    return word.rstrip(_ENDS_SENTENCE) or word.strip(",;:!?")
