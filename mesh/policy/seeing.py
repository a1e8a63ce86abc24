"""What a policy sees of a call: its paths in normal form, the arguments that rules look at, the patterns that
match them."""

from collections.abc import Iterator, Mapping

import msgspec

from mesh.policy.commands import Expansion, ParsedCommand, Redirection, SimpleCommand
from mesh.policy.conditions import ABSENT, PATHS, UNPLACED, Seen, SeenPath, as_text, value_at
from mesh.policy.layer import Layer
from mesh.policy.paths import CallPath, call_path, collapsed
from mesh.policy.policy_call import PolicyCall

_UNKNOWN = object()
_MOST_WITHIN = 1_000
"""Values within one that is no path. Whether there are more does not matter much: such a call asks."""


def paths_of(call: PolicyCall, parsed: ParsedCommand | None) -> tuple[SeenPath, ...]:
    """The paths of a call: its arguments that are paths, and the files that its command redirects to."""
    if not call.paths and (parsed is None or not parsed.paths):
        return ()
    own = tuple(SeenPath(each) for each in _arguments(call))
    folder = _folder(own)
    redirected = (_redirection(each, folder) for each in (parsed.paths if parsed else ()))
    return (*own, *redirected)


def _folder(own: tuple[SeenPath, ...]) -> str | None:
    """Where the command of a call starts: in its only path argument, or in the root. None: nobody knows."""
    if not own:
        return "."
    return own[0].path.text if len(own) == 1 and own[0].path.is_placed else None


def _arguments(call: PolicyCall) -> Iterator[CallPath]:
    writes = not call.hints.read_only
    for name in call.paths:
        value = value_at(call.arguments, name)
        if value is not ABSENT and value is not None:
            for each in value if isinstance(value, list | tuple) else (value,):
                yield call_path(each, writes=writes)
                yield from _within(each, writes=writes)


def _within(value: object, *, writes: bool) -> Iterator[CallPath]:
    """The texts in an object or a list that stands where a path is expected. Each may be a path."""
    if not isinstance(value, Mapping | list | tuple):
        return
    waiting: list[object] = [value]
    for _ in range(_MOST_WITHIN):
        if not waiting:
            return
        found = waiting.pop()
        if isinstance(found, str):
            yield call_path(found, writes=writes)._replace(is_placed=False)
        elif isinstance(found, Mapping):
            waiting += (*found.keys(), *found.values())
        elif isinstance(found, list | tuple):
            waiting += found


def _redirection(found: Redirection, folder: str | None) -> SeenPath:
    value: object = found.path
    if isinstance(found.path, Expansion):
        value = _UNKNOWN
    elif not found.path.startswith(("/", "~")):
        value = _UNKNOWN if folder is None else f"{folder}/{found.path}"
    return SeenPath(call_path(value, writes=found.writes), is_redirection=True)


def files_named(
    call: PolicyCall, parsed: ParsedCommand | None, paths: tuple[SeenPath, ...]
) -> list[CallPath]:
    """What the words of a command may name as files: whole words, and what comes after an equals sign."""
    folder = _folder(tuple(each for each in paths if not each.is_redirection))
    parts = parsed.parts if parsed else ()
    words = {word for part in parts for word in part.words if isinstance(word, str)}
    texts = [text for word in words for text in {word, word.rpartition("=")[2]} if text]
    return [call_path(_below(text, folder), writes=False) for text in texts]


def _below(path: str, folder: str | None) -> str:
    return path if folder is None or path.startswith(("/", "~")) else f"{folder}/{path}"


def seen_by(layer: Layer, call: PolicyCall, paths: tuple[SeenPath, ...]) -> Seen:
    """What a layer sees of a call, without its command."""
    hits: set[int] = set()
    values = {}
    for name, patterns in layer.patterns.items():
        if name == PATHS:
            paths = tuple(msgspec.structs.replace(each, hits=_hits(layer, each.path)) for each in paths)
            hits.update(*(each.hits for each in paths))
        elif name == UNPLACED:
            continue  # asked with the others
        elif (value := value_at(call.arguments, name)) is not ABSENT:
            values[name] = value
            hits.update(patterns.hits(as_text(value)))
    is_uncertain = any(not each.path.is_known for each in paths)
    return Seen(call=call, paths=paths, hits=frozenset(hits), values=values, is_uncertain=is_uncertain)


def with_part(seen: Seen, part: SimpleCommand) -> Seen:
    """The same, for one simple command of the call."""
    found = msgspec.structs.replace(seen, part=part)
    computed = any(isinstance(word, Expansion) for words in found.forms for word in words)
    programs = frozenset(words[0] for words in found.forms if words)
    return msgspec.structs.replace(found, programs=programs, is_uncertain=seen.is_uncertain or computed)


def _hits(layer: Layer, path: CallPath) -> frozenset[int]:
    if not path.is_known:
        return frozenset()
    if path.is_placed:
        return frozenset(layer.patterns[PATHS].hits(path.text))
    both = (layer.patterns[PATHS], layer.patterns[UNPLACED])
    return frozenset(hit for each in both for text in (path.text, collapsed(path)) for hit in each.hits(text))
