"""A YAML text as a tree of nodes that know their line, and the environment put into it.

Above: `mesh.config.model`, which knows what the keys mean. This file knows YAML and ``${VAR}`` only.

Plain scalars are read by the core schema of YAML 1.2: ``true``/``false``, numbers, ``null``/``~``
and nothing; everything else is text (``yes``, ``on``, ``12:30`` and dates are text). Keys are
always text. Tags and merge keys are not part of it. Aliases are, up to `MAX_NODES` in all.

Bounds: `MAX_BYTES` of text, `MAX_DEPTH` levels, `MAX_NODES` nodes after aliases are put in, and
`MAX_RESOLVED` characters after the environment is put in.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mesh.core.errors import ConfigError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 200
MAX_NODES = 50_000
MAX_RESOLVED = 8 * 1024 * 1024

Loc = tuple[str | int, ...]
Scalar = str | int | float | bool | None
Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}
_VARIABLE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|(?P<bad>\$\{)"
)


def read_text(path: Path) -> str:
    """The text of a config file. Raises `ConfigError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}:1: cannot be read: {error.strerror or error}"]) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: not UTF-8 text; save the file as UTF-8"]) from error


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the file. ``value`` is a scalar, a dict of nodes or a list of nodes; ``${VAR}`` is
    still in it. ``line`` counts from 1 and is that of the key, where there is one.
    ``size`` is the number of nodes under it, itself included."""

    line: int
    value: Scalar | dict[str, "Node"] | list["Node"]
    size: int = 1

    def at(self, loc: Loc) -> "Node":
        """The node at a place, or the nearest one above it that the file has."""
        node = self
        for key in loc:
            child = node.child(key)
            if child is None:
                break
            node = child
        return node

    def child(self, key: str | int) -> "Node | None":
        """The node under a key or an index; None where there is none."""
        if isinstance(self.value, dict) and isinstance(key, str):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            return self.value[key]
        return None

    def data(self) -> Any:
        """The tree as dicts, lists and scalars, the environment not put in."""
        if isinstance(self.value, dict):
            return {key: node.data() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.data() for node in self.value]
        return self.value


class Refused(Exception):
    """The text cannot be read any further. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def compose(text: str, origin: str) -> Node:
    """The nodes of a text. Raises `ConfigError` with each repeated key, or what broke the syntax."""
    builder = _Builder()
    try:
        if len(text.encode()) > MAX_BYTES:
            raise Refused(1, f"the file is over {MAX_BYTES:,} bytes; a config is a few kilobytes")
        root = builder.document(yaml.parse(text, Loader=Parser))
    except yaml.MarkedYAMLError as error:
        builder.problems.append(_syntax(error, text))
    except (yaml.YAMLError, UnicodeError):
        builder.problems.append((1, "not valid YAML: it holds characters that YAML does not allow"))
    except Refused as error:
        builder.problems.append((error.line, str(error)))
    if builder.problems:
        raise ConfigError([f"{origin}:{line}: {problem}" for line, problem in builder.problems])
    return root


@dataclass
class _Builder:
    """Nodes from the parser's events. Repeated keys are noted and reading goes on."""

    anchors: dict[str, Node] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    nodes: int = 0

    def document(self, events: Iterator[Any]) -> Node:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return Node(1, {})
        root = self.node(next(events), events, 1)
        next(events)  # the end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise Refused(_line(after), "a second document starts here; expected one (remove the ---)")
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Refused(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if event.tag not in (None, "!"):
            raise Refused(_line(event), "tags are not supported; text that begins with ! needs quotes")
        self.count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            if "\0" in event.value:
                raise Refused(_line(event), "a NUL character; remove it")
            plain = event.style in (None, "")
            node = Node(_line(event), scalar(event.value) if plain else event.value)
        elif isinstance(event, yaml.MappingStartEvent):
            node = self.mapping(event, events, depth)
        else:
            node = self.sequence(event, events, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def mapping(self, start: Any, events: Iterator[Any], depth: int) -> Node:
        children: dict[str, Node] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise Refused(_line(event), "a key must be a word, not a list, a mapping or an alias")
            child = replace(self.node(next(events), events, depth + 1), line=_line(event))
            if event.value in children:
                first = children[event.value].line
                self.problems.append((child.line, f"{event.value}: written twice; first on line {first}"))
            children[event.value] = child
        return Node(_line(start), children, size=1 + sum(child.size for child in children.values()))

    def sequence(self, start: Any, events: Iterator[Any], depth: int) -> Node:
        children: list[Node] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            children.append(self.node(event, events, depth + 1))
        return Node(_line(start), children, size=1 + sum(child.size for child in children))

    def alias(self, event: Any) -> Node:
        # Invariant: an anchor is known only after its node is complete, so that nothing holds itself.
        node = self.anchors.get(event.anchor)
        if node is None:
            raise Refused(
                _line(event), "an alias without an anchor (&) before it; text that begins with * needs quotes"
            )
        self.count(node.size, event)
        return node

    def count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise Refused(
                _line(event), f"more than {MAX_NODES:,} values, aliases counted where they are used"
            )


def _syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    problem = f"not valid YAML: {error.problem or error.context}"
    if "${" in "".join(text.splitlines()[line : line + 1]):
        problem += '; within { } and [ ] a variable needs quotes: "${NAME}"'
    return line + 1, problem


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def scalar(text: str) -> Scalar:
    """A plain scalar by the core schema.

    >>> scalar("8080"), scalar("1.5"), scalar("true"), scalar("yes"), scalar("~")
    (8080, 1.5, True, 'yes', None)
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and abs(number := float(text)) != float("inf"):
        return number
    return text


@dataclass
class Resolved:
    """A tree with the environment put in.

    ``text`` holds, for each place whose value came from the environment, that value as text:
    whether ``${X}`` = "80" is a number or text is for the key to say. ``bad`` holds the places
    that have no value; their ``problems`` are (place, message).
    """

    env: Mapping[str, str]
    text: dict[Loc, str] = field(default_factory=dict)
    problems: list[tuple[Loc, str]] = field(default_factory=list)
    bad: set[Loc] = field(default_factory=set)
    length: int = 0

    def data(self, node: Node, loc: Loc = ()) -> Any:
        """The tree as dicts, lists and scalars."""
        if isinstance(node.value, dict):
            return {key: self.data(child, (*loc, key)) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self.data(child, (*loc, index)) for index, child in enumerate(node.value)]
        if not isinstance(node.value, str) or "${" not in node.value:
            return node.value
        return self.substituted(node.value, loc)

    def substituted(self, raw: str, loc: Loc) -> Scalar:
        def value(match: re.Match[str]) -> str:
            text = self.variable(match, loc)
            self.length += len(text)
            return text if self.length <= MAX_RESOLVED else ""

        within = self.length <= MAX_RESOLVED
        self.text[loc] = text = _VARIABLE.sub(value, raw)
        if within and self.length > MAX_RESOLVED:
            self.refuse(loc, f"over {MAX_RESOLVED:,} characters with the environment put in")
        typed = scalar(text)
        return text if typed is None else typed

    def variable(self, match: re.Match[str], loc: Loc) -> str:
        if match["escape"]:
            return "${"
        if match["bad"]:
            self.refuse(
                loc, "${ starts no variable; expected ${NAME} or ${NAME:-default}; write $${ for a ${"
            )
            return ""
        name, default = match["name"], match["default"]
        found = self.env.get(name)
        if default is not None:
            return found or str(default[2:])
        if found is None:
            wanted = f"set it, or write ${{{name}:-default}}"
            self.refuse(loc, f"the environment variable {name} is not set; {wanted}")
        return found or ""

    def refuse(self, loc: Loc, message: str) -> None:
        self.bad.add(loc)
        self.problems.append((loc, message))


def canonical(data: Any) -> bytes:
    """One byte string for all texts that say the same: key order, comments and layout do not count."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
