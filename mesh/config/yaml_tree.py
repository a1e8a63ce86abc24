"""Reads a YAML text into a tree of nodes that know their line numbers.

Above: `mesh.config.model`, which knows what the keys mean. This module knows only YAML.

Plain scalars are read by the core schema of YAML 1.2: ``true``/``false``, numbers, ``null``/``~`` and
nothing; everything else is text (``yes``, ``on``, ``12:30`` and dates are text). Keys are always text.
Aliases are supported. Tags and merge keys are not, because a config has no use for them.

The tree is built from the events of PyYAML's parser. `docs/decisions/yaml.md` says why it is not built by
PyYAML's own composer or by ruamel.yaml.

Bounds: `MAX_BYTES` of text, `MAX_DEPTH` levels, and `MAX_NODES` nodes, where a node counts once for each
place at which an alias repeats it. A small file of nested aliases could otherwise expand to any size.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mesh.core.errors import ConfigError

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # PyYAML was built without libyaml: the same events, but slower
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 200
MAX_NODES = 50_000

Loc = tuple[str | int, ...]
"""The keys and indices that lead from the top of a file to a node, as pydantic's errors write them."""
Scalar = str | int | float | bool | None

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_CONSTANTS: dict[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}


def read_text(path: Path) -> str:
    """Returns the text of a config file. Raises `ConfigError` if it cannot be read."""
    # A pipe of the shell has no path of its own, and somebody writes to it. Nobody may write to one that has.
    if Path(os.path.realpath(path)).is_fifo():
        raise ConfigError([f"{path}:1: is a pipe; expected a file"])
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)  # one byte more than `compose` accepts: the path may be a device
    except OSError as error:
        raise ConfigError([f"{path}:1: cannot be read: {error.strerror or error}"]) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: not UTF-8 text; save the file as UTF-8"]) from error


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A node of the file.

    ``value`` is a scalar, a mapping of nodes or a list of nodes; a text may still contain ``${VAR}``.
    ``line`` counts from 1 and is the line of the key, if the node has one. ``size`` is the number of nodes in
    it, including itself.
    """

    line: int
    value: Scalar | dict[str, "YamlNode"] | list["YamlNode"]
    size: int = 1

    def nearest(self, loc: Loc) -> "YamlNode":
        """Returns the node at ``loc``, or the nearest ancestor that the file has."""
        node = self
        for key in loc:
            child = node.child(key)
            if child is None:
                break
            node = child
        return node

    def child(self, key: str | int) -> "YamlNode | None":
        """Returns the node under a key or an index, or None if there is none."""
        if isinstance(self.value, dict) and isinstance(key, str):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            return self.value[key]
        return None

    def with_lines(self, lines: "Mapping[Loc, int]", loc: Loc = (), line: int = 1) -> "YamlNode":
        """Returns the tree with other lines. A node without one has that of its parent."""
        line = lines.get(loc, line)
        if isinstance(self.value, dict):
            inner = {key: node.with_lines(lines, (*loc, key), line) for key, node in self.value.items()}
            return replace(self, line=line, value=inner)
        if isinstance(self.value, list):
            items = [node.with_lines(lines, (*loc, at), line) for at, node in enumerate(self.value)]
            return replace(self, line=line, value=items)
        return replace(self, line=line)

    def data(self) -> Any:
        """Returns the tree as dicts, lists and scalars, without substituting variables."""
        if isinstance(self.value, dict):
            return {key: node.data() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.data() for node in self.value]
        return self.value


class UnreadableYaml(Exception):
    """The rest of the text cannot be read. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def compose(text: str, origin: str) -> YamlNode:
    """Returns the root node of a text. Raises `ConfigError` with every repeated key and the syntax error."""
    composer = _Composer()
    try:
        if len(text.encode()) > MAX_BYTES:
            raise UnreadableYaml(1, f"the file is over {MAX_BYTES:,} bytes; a config is a few kilobytes")
        root = composer.document(yaml.parse(text, Loader=Loader))
    except yaml.MarkedYAMLError as error:
        composer.problems.append(_syntax_error(error, text))
    except (yaml.YAMLError, UnicodeError):
        composer.problems.append((1, "not valid YAML: it holds characters that YAML does not allow"))
    except UnreadableYaml as error:
        composer.problems.append((error.line, str(error)))
    if composer.problems:
        raise ConfigError([f"{origin}:{line}: {problem}" for line, problem in composer.problems])
    return root


@dataclass
class _Composer:
    """Builds nodes from the parser's events. It collects repeated keys instead of stopping at the first."""

    anchors: dict[str, YamlNode] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    nodes: int = 0

    def document(self, events: Iterator[Any]) -> YamlNode:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return YamlNode(1, {})
        root = self.node(next(events), events, 1)
        next(events)  # the end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise UnreadableYaml(_line(after), "a second document starts here; expected one (remove the ---)")
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> YamlNode:
        if depth > MAX_DEPTH:  # well below Python's recursion limit
            raise UnreadableYaml(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if event.tag not in (None, "!"):
            raise UnreadableYaml(_line(event), "tags are not supported; text that begins with ! needs quotes")
        self.count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            node = self.mapping(event, events, depth)
        else:
            node = self.sequence(event, events, depth)
        if event.anchor:
            # Invariant: an anchor is known only after its node is complete, so that no node contains itself.
            self.anchors[event.anchor] = node
        return node

    def scalar(self, event: Any) -> YamlNode:
        if "\0" in event.value:  # no program takes it as an argument or in its environment
            raise UnreadableYaml(_line(event), "a NUL character; remove it")
        is_plain = event.style in (None, "")
        return YamlNode(_line(event), typed(event.value) if is_plain else event.value)

    def mapping(self, start: Any, events: Iterator[Any], depth: int) -> YamlNode:
        children: dict[str, YamlNode] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise UnreadableYaml(_line(event), "a key must be a word, not a list, a mapping or an alias")
            if event.value == "<<" and event.style in (None, ""):
                self.problems.append((_line(event), "merge keys (<<) are not supported; write the keys here"))
            child = replace(self.node(next(events), events, depth + 1), line=_line(event))
            if event.value in children:
                first = children[event.value].line
                self.problems.append((child.line, f"{event.value}: written twice; first on line {first}"))
            children[event.value] = child
        return YamlNode(_line(start), children, size=1 + sum(child.size for child in children.values()))

    def sequence(self, start: Any, events: Iterator[Any], depth: int) -> YamlNode:
        children: list[YamlNode] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            children.append(self.node(event, events, depth + 1))
        return YamlNode(_line(start), children, size=1 + sum(child.size for child in children))

    def alias(self, event: Any) -> YamlNode:
        node = self.anchors.get(event.anchor)
        if node is None:
            # The name is not repeated: a secret that begins with * looks like an alias.
            raise UnreadableYaml(
                _line(event), "an alias without an anchor (&) before it; text that begins with * needs quotes"
            )
        self.count(node.size, event)
        return node

    def count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise UnreadableYaml(
                _line(event), f"more than {MAX_NODES:,} values, aliases counted where they are used"
            )


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    problem = f"not valid YAML: {error.problem or error.context}"
    if "${" in "".join(text.splitlines()[line : line + 1]):
        problem += '; within { } and [ ] a variable needs quotes: "${NAME}"'
    return line + 1, problem


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def typed(text: str) -> Scalar:
    """Returns the value of a plain scalar by the core schema.

    >>> typed("8080"), typed("1.5"), typed("true"), typed("yes"), typed("~")
    (8080, 1.5, True, 'yes', None)
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and abs(number := float(text)) != float("inf"):
        return number
    return text


def canonical(data: Any) -> bytes:
    """Returns the same bytes for all texts with the same content. Key order, comments and layout do not
    count."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
