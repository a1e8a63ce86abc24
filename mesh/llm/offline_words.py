"""How the offline model reads: which of the offered tools does a sentence ask for?

It knows English verbs, and nothing of any tool but what the request says about it: name,
description and schema.
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
        "add": "add create new make insert register put save store build",
        "remove": "remove delete drop destroy erase discard rm del",
        "update": "update change set modify edit rename replace",
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
    """A sentence: ``verb`` is the group of its first verb ("" for none), ``words`` its other plain
    words in singular, ``tokens`` everything as it was written."""

    text: str
    verb: str
    words: frozenset[str]
    tokens: tuple[str, ...]


class _Known(msgspec.Struct, frozen=True):
    verbs: frozenset[str]
    nouns: frozenset[str]
    described: frozenset[str]
    schema: frozenset[str]


def singular(word: str) -> str:
    """
    >>> singular("Resources"), singular("entries"), singular("class")
    ('resource', 'entry', 'class')
    """
    word = word.lower()
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def is_filler(word: str) -> bool:
    """Whether a word carries no meaning of its own, or is a verb."""
    return word.lower() in _STOP or word.lower() in _VERBS


def read(text: str) -> Reading:
    """Reads a sentence."""
    tokens = tuple(token.strip(".,;:!?()'\"`") for token in text.split())
    plain = [token.lower() for token in tokens if token.isalpha()]
    verb = next((_VERBS[word] for word in plain if word in _VERBS), "")
    words = frozenset(singular(word) for word in plain if not is_filler(word))
    return Reading(text, verb, words, tuple(token for token in tokens if token))


def choose(reading: Reading, tools: tuple[ToolSpec, ...]) -> ToolSpec | None:
    """The tool that fits best, the first of equals; None when none is meant."""
    best, best_score = None, 0.0
    for tool in tools:
        score = _score(reading, _known(tool))
        if score > best_score:
            best, best_score = tool, score
    return best


def verb_of(tool: ToolSpec) -> str:
    """The group of the verb in a tool's name, "" for none."""
    return min(_known(tool).verbs, default="")


def words_of(tool: ToolSpec) -> frozenset[str]:
    """The nouns of a tool's name."""
    return _known(tool).nouns


def _score(reading: Reading, known: _Known) -> float:
    nouns = len(reading.words & known.nouns)
    hints = len(reading.words & known.schema) + 0.5 * len(reading.words & known.described)
    if reading.verb and known.verbs:
        # The wrong verb is the wrong tool, whatever else fits.
        return 5.0 + 2 * nouns + hints if reading.verb in known.verbs else 0.0
    if not nouns and (known.verbs or hints < 1.5):
        return 0.0
    # Nobody said what to do: looking does no harm.
    return 2.0 * nouns + hints + ("list" in known.verbs)


@lru_cache(512)
def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text)))


def _known(tool: ToolSpec) -> _Known:
    name = _words(tool.name)
    said = [
        word for key, schema in properties(tool.input_schema).items() for word in (key, *_enum_words(schema))
    ]
    return _Known(
        verbs=frozenset(_VERBS[word] for word in name if word in _VERBS),
        nouns=frozenset(singular(word) for word in name if not is_filler(word)),
        described=frozenset(singular(word) for word in _words(tool.description) if not is_filler(word)),
        schema=frozenset(singular(word) for text in said for word in _words(text)),
    )


def properties(schema: Any) -> dict[str, dict[str, Any]]:
    """The properties of an object schema; only what is well formed."""
    found = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, dict)}


def _enum_words(schema: dict[str, Any]) -> list[str]:
    enum = schema.get("enum")
    return [value for value in enum if isinstance(value, str)] if isinstance(enum, list) else []
