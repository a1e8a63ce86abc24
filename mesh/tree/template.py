"""``{placeholders}`` in prompts.

A placeholder is a name in braces. If the name has a value, it is replaced by it, once: braces in a value have
no meaning. Other braces stay as they are, so that JSON and code in a prompt need no escaping. Where the value
is JSON, such as an answer with an ``output_schema``, dots lead into it: ``{order.items.0.price}``.

The built-in names always have a value, and hide keys of the session state with the same name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh.core.messages import Assistant, Message, User
from mesh.core.strict_json import parsed
from mesh.tree.turn import PassInput

BUILT_IN = ("user_message", "history", "message_id", "conversation_id", "session_id", "turn", "iteration")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)((?:\.[A-Za-z0-9_-]+)*)\}")


def placeholders(template: str) -> set[str]:
    """The names of the placeholders in a template, without what follows the dot."""
    return {name for name, _ in _PLACEHOLDER.findall(template)}


def paths_in(template: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each placeholder with a dot: its name, and the keys that lead into its value."""
    for name, path in _PLACEHOLDER.findall(template):
        if path:
            yield name, path[1:].split(".")


def plain_placeholders(template: str) -> set[str]:
    """The names of those without a dot. With one it may as well be code: ``{self.name}``."""
    return {name for name, path in _PLACEHOLDER.findall(template) if not path}


def render(template: str, turn: PassInput) -> str:
    """The template with the values of this turn.

    ``{history}`` are the messages of the turns before, one a paragraph; ``{iteration}`` is that of the
    nearest loop, from 1.
    """
    asked = placeholders(template)
    if not asked:
        return template
    values: dict[str, str] = {key: turn.state[key] for key in asked & turn.state.keys()}
    values |= {
        "user_message": turn.user_message,
        "message_id": turn.message_id,
        "conversation_id": turn.conversation_id,
        "session_id": turn.session_id,
        "turn": str(turn.turn),
        "iteration": str(turn.iteration),
    }
    if "history" in asked:
        values["history"] = _as_text(turn.history)
    return fill(template, values)


def render_all(value: Any, turn: PassInput) -> Any:
    """A JSON value in which each text is rendered; keys of objects and everything else stay as they are. A
    text stays text, also one that is nothing but a placeholder."""
    match value:
        case str():
            return render(value, turn)
        case dict():
            return {key: render_all(inner, turn) for key, inner in value.items()}
        case list():
            return [render_all(inner, turn) for inner in value]
    return value


def placeholders_in(value: Any) -> set[str]:
    """The names of the placeholders in all texts of a JSON value."""
    match value:
        case str():
            return placeholders(value)
        case dict():
            return set[str]().union(*map(placeholders_in, value.values()))
        case list():
            return set[str]().union(*map(placeholders_in, value))
    return set()


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replaces the placeholders that have a value.

    >>> fill("{a} {b} {c}", {"a": "{b}", "b": "2"})
    '{b} 2 {c}'
    >>> fill("{order.total} {order.id}", {"order": '{"total": 7}'})
    '7 {order.id}'
    """
    parts: dict[str, str] = {}  # a path is followed once, however often it is asked for

    def filled(found: re.Match[str]) -> str:
        name, path = found[1], found[2]
        value = values.get(name)
        if value is None or not path:
            return found[0] if value is None else value
        if found[0] not in parts:
            parts[found[0]] = _inside(value, path[1:].split("."), found[0])
        return parts[found[0]]

    return _PLACEHOLDER.sub(filled, template)


def _inside(text: str, path: Sequence[str], otherwise: str) -> str:
    """What a path leads to in a JSON text: a text as it is, anything else as JSON. ``otherwise``, if it is no
    JSON or the path leads nowhere."""
    try:
        value = parsed(text)
    except ValueError:
        return otherwise
    for key in path:
        match value:
            case dict() if key in value:
                value = value[key]
            case list() if key.isdecimal() and len(key) < 10 and int(key) < len(value):
                value = value[int(key)]
            case _:
                return otherwise
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_text(history: Sequence[Message]) -> str:
    lines: list[str] = []
    for message in history:
        match message:
            case User():
                lines.append(f"user: {message.text}")
            case Assistant(text=text) if text:
                lines.append(f"assistant: {text}")
            case _:
                pass
    return "\n\n".join(lines)
