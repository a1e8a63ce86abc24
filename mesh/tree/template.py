"""``{placeholders}`` in prompts.

A placeholder is a name in braces. One that has a value is replaced by it, once: braces in a value mean
nothing. Any other stays as it is, so that JSON and code in a prompt need no escaping.

The built-in ones are always there; a key of the session state with the same name is not seen.
"""

import re
from collections.abc import Mapping, Sequence

from mesh.core.messages import Assistant, Message, User
from mesh.tree.turn import TurnInput

BUILT_IN = ("user_message", "history", "message_id", "conversation_id", "session_id", "turn", "iteration")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def placeholders(template: str) -> set[str]:
    """The names that a template asks for."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, turn: TurnInput) -> str:
    """The template with the values of this turn.

    ``{history}`` is what was said in the turns before, a paragraph a message; ``{iteration}`` the round of
    the nearest loop, from 1.
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
        values["history"] = _told(turn.history)
    return fill(template, values)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Puts values in. Pure.

    >>> fill("{a} {b} {c}", {"a": "{b}", "b": "2"})
    '{b} 2 {c}'
    """
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def _told(history: Sequence[Message]) -> str:
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
