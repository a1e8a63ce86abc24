"""How the offline model reads a sentence, and which of the offered tools it chooses for it.

It knows some English verbs. About a tool it knows only what the request says: the name, the description and
the schema.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec

from mesh.core.messages import ToolSpec

_VERBS: dict[str, str] = {
    word: group
    for group, words in {
        "list": "list show display get view see find search read fetch look print count",
        "add": "add create new make insert register put save store build write",
        "remove": "remove delete drop destroy erase discard rm del",
        "update": "update change set modify edit rename replace patch",
        "start": "start run launch execute begin",
        "stop": "stop end halt cancel terminate",
    }.items()
    for word in words.split()
}
_FILLERS = """
    what which
    a an the of to in on at for with without and or all any every each everything me my our your you i we
    it its is are be was were do does did can could would will please now there that this these those from
    by as into called named name one some how many much tell have has matching like whose where equal
"""
_STOP = frozenset(_FILLERS.split())
_WORD = re.compile(r"[A-Za-z]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Reading(msgspec.Struct, frozen=True):
    """A sentence as it was read.

    ``verb``: the group of its first verb, "" if it has none. ``words``: its other words, except fillers, in
    the singular. ``tokens``: everything, as it was written.
    """

    text: str
    verb: str
    words: frozenset[str]
    tokens: tuple[str, ...]


class _ToolWords(msgspec.Struct, frozen=True):
    """The words of a tool: the groups of the verbs and the nouns of its name, the words of its description,
    and those of its schema's properties."""

    verbs: frozenset[str]
    nouns: frozenset[str]
    described: frozenset[str]
    schema: frozenset[str]


def singular(word: str) -> str:
    """A noun in lower case and in the singular, as far as a rule of thumb goes.

    >>> singular("Resources"), singular("entries"), singular("class")
    ('resource', 'entry', 'class')
    """
    word = word.lower()
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def is_filler(word: str) -> bool:
    """Whether a word says nothing about which thing is meant: an article, a pronoun, a verb."""
    return is_function_word(word) or word.lower() in _VERBS


def is_function_word(word: str) -> bool:
    """Whether a word only connects others: an article, a pronoun, a preposition."""
    return word.lower() in _STOP


def read(text: str) -> Reading:
    """Reads what a user wrote."""
    tokens = tuple(token.strip(".,;:!?()'\"`") for token in text.split())
    plain = [token.lower() for token in tokens if token.isalpha()]
    verb = next((_VERBS[word] for word in plain if word in _VERBS), "")
    words = frozenset(singular(word) for word in plain if not is_filler(word))
    return Reading(text, verb, words, tuple(token for token in tokens if token))


def choose(reading: Reading, tools: tuple[ToolSpec, ...]) -> ToolSpec | None:
    """The tool that fits a sentence best, the first one of those that fit equally; None if none fits."""
    best, best_score = None, 0.0
    for tool in tools:
        score = _score(reading, _tool_words(tool))
        if score > best_score:
            best, best_score = tool, score
    return best


def verb_of(tool: ToolSpec) -> str:
    """The group of the verb in a tool's name, "" if it has none."""
    return min(_tool_words(tool).verbs, default="")


def words_of(tool: ToolSpec) -> frozenset[str]:
    """The nouns of a tool's name."""
    return _tool_words(tool).nouns


def _score(reading: Reading, tool: _ToolWords) -> float:
    nouns = len(reading.words & tool.nouns)
    hints = len(reading.words & tool.schema) + 0.5 * len(reading.words & tool.described)
    if reading.verb and tool.verbs:
        # A tool that does something else is the wrong one, however many nouns fit.
        return 5.0 + 2 * nouns + hints if reading.verb in tool.verbs else 0.0
    if not nouns and (tool.verbs or hints < 1.5):
        return 0.0
    # The sentence does not say what to do. A tool that only lists things does no harm.
    return 2.0 * nouns + hints + ("list" in tool.verbs)


@lru_cache(512)
def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text)))


def _tool_words(tool: ToolSpec) -> _ToolWords:
    name = _words(tool.name)
    said = [
        word for key, schema in properties(tool.input_schema).items() for word in (key, *_enum_words(schema))
    ]
    return _ToolWords(
        verbs=frozenset(_VERBS[word] for word in name if word in _VERBS),
        nouns=frozenset(singular(word) for word in name if not is_filler(word)),
        described=frozenset(singular(word) for word in _words(tool.description) if not is_filler(word)),
        schema=frozenset(singular(word) for text in said for word in _words(text)),
    )


def properties(schema: Any) -> dict[str, dict[str, Any]]:
    """The properties of an object schema. What is not well formed is left out, because schemas come from
    servers that may send anything."""
    found = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, dict)}


def _enum_words(schema: dict[str, Any]) -> list[str]:
    enum = schema.get("enum")
    return [value for value in enum if isinstance(value, str)] if isinstance(enum, list) else []
