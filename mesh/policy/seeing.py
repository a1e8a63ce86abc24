"""What a policy sees of a call: its paths in normal form, the arguments that rules look at, the patterns that
match them."""

from collections.abc import Iterator

import msgspec

from mesh.policy.commands import Expansion, ParsedCommand, Redirection, SimpleCommand
from mesh.policy.conditions import ABSENT, PATHS, Seen, SeenPath, as_text, value_at
from mesh.policy.layer import Layer
from mesh.policy.paths import CallPath, call_path, collapsed
from mesh.policy.policy_call import PolicyCall

_UNKNOWN = object()


def paths_of(call: PolicyCall, parsed: ParsedCommand | None) -> tuple[SeenPath, ...]:
    """The paths of a call: its arguments that are paths, and the files that its command redirects to."""
    if not call.paths and (parsed is None or not parsed.paths):
        return ()
    own = tuple(SeenPath(each) for each in _arguments(call))
    folder = _folder(own)
    redirected = (_redirection(each, call, folder) for each in (parsed.paths if parsed else ()))
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
                yield call_path(each, call.roots, writes=writes)


def _redirection(found: Redirection, call: PolicyCall, folder: str | None) -> SeenPath:
    value: object = found.path
    if isinstance(found.path, Expansion):
        value = _UNKNOWN
    elif not found.path.startswith(("/", "~")):
        value = _UNKNOWN if folder is None else f"{folder}/{found.path}"
    return SeenPath(call_path(value, call.roots, writes=found.writes), is_redirection=True)


def seen_by(layer: Layer, call: PolicyCall, paths: tuple[SeenPath, ...]) -> Seen:
    """What a layer sees of a call, without its command."""
    hits: set[int] = set()
    values = {}
    for name, patterns in layer.patterns.items():
        if name == PATHS:
            paths = tuple(msgspec.structs.replace(each, hits=_hits(layer, each.path)) for each in paths)
            hits.update(*(each.hits for each in paths))
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
    patterns = layer.patterns[PATHS]
    found = patterns.hits(path.text)
    return frozenset(found if path.is_placed else [*found, *patterns.hits(collapsed(path))])
