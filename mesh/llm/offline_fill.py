"""How the offline model takes the arguments of a tool call from a sentence, by the tool's schema."""

import re
from typing import Any

import msgspec

from mesh.core.messages import ToolSpec
from mesh.llm.offline_paths import edits, is_path, path_after_noun, path_like
from mesh.llm.offline_words import Reading, is_filler, properties, singular, verb_of, words_of
from mesh.mcp.schema import problems

_QUOTED = re.compile(r"\"([^\"]+)\"|'([^']+)'|`([^`]+)`")
_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,15})?")
_ID = re.compile(r"\d{10,}|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")
_NAME = re.compile(r"(?=.*[A-Za-z])(?=.*[\d_-])[\w.-]+")
_CALLED = re.compile(r"\b(?:called|named)\s+[\"'`]?([^\s\"'`,;]+)", re.IGNORECASE)
_LIKE = re.compile(r"\b(?:matching|like|containing)\s+[\"'`]?([^\s\"'`,;]+)", re.IGNORECASE)
_ALL = re.compile(r"\b(?:all|every|everything)\b", re.I)
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")
TEXTUAL = ("text", "message", "query", "content", "prompt", "input", "question", "body")
"""An argument whose name contains one of these takes a whole sentence."""


class Filled(msgspec.Struct, frozen=True):
    """The arguments that the sentence gives, and the names of those that are needed and not given."""

    arguments: dict[str, Any]
    missing: tuple[str, ...] = ()


def fill(tool: ToolSpec, reading: Reading) -> Filled:
    """The arguments for a call of a tool. ``missing`` is empty only if they satisfy the tool's schema."""
    known = properties(tool.input_schema)
    words = _Words(tool, reading, known)
    needed = required_of(tool.input_schema)
    arguments: dict[str, Any] = {}
    for key in sorted(known, key=lambda key: key not in needed):
        value = words.value(key, known[key], key in needed)
        if value is not None and is_valid(known[key], value, tool.input_schema):
            arguments[key] = value
    missing = tuple(key for key in needed if key not in arguments)
    if not missing and known and not arguments and verb_of(tool) not in ("", "list"):
        # The tool changes something, and the sentence does not say what: better to ask than to guess.
        missing = tuple(known)
    if not missing and not is_valid(tool.input_schema, arguments):
        missing = tuple(key for key in known if key not in arguments) or ("arguments",)
    return Filled(arguments, missing)


def is_valid(schema: Any, value: Any, root: dict[str, Any] | None = None) -> bool:
    """Whether a value satisfies a schema, whose references lead into ``root``. No value satisfies a schema
    that is not valid itself."""
    if root is not None and "$defs" in root and isinstance(schema, dict):
        schema = {**schema, "$defs": root["$defs"]}
    return not problems(schema, value)


class _Words:
    """The parts of a sentence that can be values of arguments. A number is used for one argument only."""

    def __init__(self, tool: ToolSpec, reading: Reading, known: dict[str, Any]) -> None:
        self._reading = reading
        self._text = reading.text
        self._has_verb = bool(verb_of(tool))
        self._reads = verb_of(tool) in ("", "list")
        self._nouns = words_of(tool) | {singular(key) for key in known}
        self._numbers = [token for token in reading.tokens if _NUMBER.fullmatch(token)]
        self._ids = [token for token in reading.tokens if _ID.fullmatch(token)]
        self._quotes = ["".join(groups) for groups in _QUOTED.findall(reading.text)]

    def value(self, key: str, schema: dict[str, Any], required: bool) -> Any:
        """The value that the sentence gives for a property; None if it gives none."""
        said = self._said(key)
        if (enum := schema.get("enum")) and isinstance(enum, list):
            tokens = {token.lower() for token in self._reading.tokens}
            return next((each for each in enum if str(each).lower() in tokens), None)
        kind = _kind(schema)
        if kind in ("integer", "number"):
            return self._number(said, kind, required)
        if kind == "boolean":
            return self._flag(key)
        if kind == "array" and (found := edits(self._text, schema)):
            return found
        if kind == "array":
            names = self._names()
            return names if names and required else None
        if kind == "object":
            return {} if required else None
        return self._string(key, said, schema, required)

    def _said(self, key: str) -> str | None:
        """The word that follows a property's name: ``with value 42``, ``name=web-1``, ``size: large``."""
        spelled = re.escape(key).replace("_", r"[_\s-]?")
        found = re.search(
            rf"\b{spelled}\b\s*(?:is|of|to|as|=|:)?\s*(\"[^\"]*\"|'[^']*'|[^\s,;\"']+)", self._text, re.I
        )
        word = found.group(1).strip("\"'").rstrip(".!?") if found else ""
        return word if word and not is_filler(word) else None

    def _number(self, said: str | None, kind: str, required: bool) -> int | float | None:
        text = said if said is not None and _NUMBER.fullmatch(said) else None
        if text is None and required and self._numbers:
            text = self._numbers[0]
        if text is None:
            return None
        if text in self._numbers:
            self._numbers.remove(text)
        if "." in text:
            return float(text) if kind == "number" else None
        return int(text)

    def _flag(self, key: str) -> bool | None:
        found = re.search(rf"\b(no|not|without)?\s*{re.escape(key).replace('_', ' ')}\b", self._text, re.I)
        return None if found is None else not found.group(1)

    def _string(self, key: str, said: str | None, schema: dict[str, Any], required: bool) -> str | None:
        lower = key.lower()
        if lower == "id" or lower.endswith(("_id", "uuid")):
            return said if said and _ID.fullmatch(said) else next(iter(self._ids), None)
        if "pattern" in lower or "regex" in lower or schema.get("format") == "regex":
            return said or self._pattern()
        if said is not None:
            return said
        if is_path(lower) and (path := self._path(required)):
            return path
        if not required:
            return None
        if any(word in lower for word in TEXTUAL):
            return next(iter(self._quotes), None) or self._rest()
        return self._name()

    def _path(self, required: bool) -> str | None:
        return path_after_noun(self._text) or (path_like(self._text) if required else None)

    def _pattern(self) -> str | None:
        if self._ids:
            return None
        if found := _LIKE.search(self._text):
            return found.group(1)
        name = next(iter(self._names()), None) if self._reads else self._name()
        if name is not None:
            return f"^{_escaped(name)}$"
        return ".*" if not self._reads and _ALL.search(self._text) else None

    def _names(self) -> list[str]:
        """What looks like a name: text in quotes, and words with digits, hyphens or underscores."""
        looks = (
            token for token in self._reading.tokens if _NAME.fullmatch(token) and not _ID.fullmatch(token)
        )
        return [*self._quotes, *looks]

    def _name(self) -> str | None:
        if found := _CALLED.search(self._text):
            return found.group(1).rstrip(".!?")
        if names := self._names():
            return names[0]
        head = re.split(r"\b(?:with|to|at|=)\b", self._text, maxsplit=1)[0]
        plain = [token.strip(".,;:!?") for token in head.split()]
        rest = [
            token
            for token in plain
            if token
            and not is_filler(token)
            and singular(token) not in self._nouns
            and not _NUMBER.fullmatch(token)
        ]
        return rest[-1] if rest else None

    def _rest(self) -> str | None:
        """The sentence without its first word, if that one only asks for the tool."""
        text = self._text.strip()
        first, _, rest = text.partition(" ")
        if not self._has_verb and singular(first) not in self._nouns:
            return text or None
        return rest.strip() or None


def _escaped(text: str) -> str:
    # Not `re.escape`, which escapes hyphens as well: some engines of other languages refuse that.
    return _SPECIAL.sub(r"\\\1", text)


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        if isinstance(option, dict):
            kinds.append(option.get("type"))
    return next((each for each in kinds if isinstance(each, str) and each != "null"), "string")


def required_of(schema: Any) -> tuple[str, ...]:
    """The properties that an object schema requires. What is not well formed is left out."""
    found = schema.get("required") if isinstance(schema, dict) else None
    return tuple(key for key in found if isinstance(key, str)) if isinstance(found, list) else ()
