"""What a tool returns or raises, as text. Nothing here needs the SDK."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json


def as_text(value: Any) -> str:
    """A value that a tool returned: a text as it is, None as nothing, anything else as JSON. Raises
    `PydanticSerializationError` or `ValueError` for what JSON cannot express.

    >>> as_text({"n": 1}), as_text("plain"), as_text(None)
    ('{"n":1}', 'plain', '')
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else to_json(value, inf_nan_mode="strings").decode()
    return without_half_characters(text)


def as_json(value: Any) -> str:
    """What a check returned, as JSON: the text ``true`` is told from the value. Raises like `as_text`.

    >>> as_json(True), as_json("true")
    ('true', '"true"')
    """
    plain = without_half_characters(value) if isinstance(value, str) else value
    return without_half_characters(to_json(plain, inf_nan_mode="strings").decode())


def without_half_characters(text: str) -> str:
    """Half of a surrogate pair is no text, and cannot be sent."""
    return text.encode("utf-8", "replace").decode()


def said_by(error: BaseException) -> str:
    """The message of an exception, which a tool may have written: an empty one if it cannot tell it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever `__str__` raises
        return ""


def explained(error: ValidationError) -> str:
    """What is wrong with arguments, in one line."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in found)
