"""The schemas of answers in one provider's wire format, each made once."""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from mesh.llm.schema_forms import NotExpressible

MOST_SCHEMAS = 16

T = TypeVar("T")


class SchemaCache(Generic[T]):
    """The schemas that were used last, as ``form`` makes them."""

    def __init__(self, form: Callable[[dict[str, Any]], T]) -> None:
        self._form = form
        self._known: deque[tuple[dict[str, Any], bytes, T | None]] = deque(maxlen=MOST_SCHEMAS)

    def of(self, schema: dict[str, Any]) -> T | None:
        """Returns the schema in the provider's format; None if that cannot express it."""
        for known, _, made in self._known:
            if known is schema:
                return made
        # As text, because in Python 1 and True are equal.
        text = msgspec.json.encode(schema)
        found = [made for _, known_text, made in self._known if known_text == text]
        made = found[0] if found else self._made(schema)
        self._known.appendleft((schema, text, made))
        return made

    def _made(self, schema: dict[str, Any]) -> T | None:
        try:
            return self._form(schema)
        except NotExpressible:
            return None
