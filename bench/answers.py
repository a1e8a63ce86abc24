"""S10: what it costs to check an answer by its schema, in this process."""

import json
from typing import Any

from bench.figures import Bench
from bench.schema_checks import ms
from mesh.llm.answer_check import checked

ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]-[0-9]+$"},
        "count": {"type": "integer", "minimum": 1},
        "note": {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]},
        "state": {"enum": ["open", "paid", "sent"]},
    },
    "required": ["sku", "count", "note", "state"],
    "additionalProperties": False,
}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 100},
    },
    "required": ["customer", "at", "items"],
    "additionalProperties": False,
    "$defs": {"item": ITEM},
}
BYTES = 2_048


def answers(bench: Bench) -> None:
    """Measures, and notes a row for an answer that fits and one that does not."""
    fits, wrong = _answer("open"), _answer("lost")
    assert not checked(ORDER, fits).problem
    assert checked(ORDER, wrong).problem
    for what, answer in (("fit", fits), ("do not fit", wrong)):
        took = ms(lambda answer=answer: checked(ORDER, answer), least_s=1)  # type: ignore[misc]
        bench.add("S10", f"a schema check, {len(answer)} bytes that {what}", "≤ 0.1 ms", ms=took)


def _answer(last_state: str) -> str:
    """An order of as many items as make 2 KB."""
    order: dict[str, Any] = {"customer": "Ann", "at": "2026-01-02T03:04:05Z", "items": []}
    text = ""
    while len(text) < BYTES:
        order["items"].append(
            {"sku": f"A-{len(order['items'])}", "count": 3, "note": "by air", "state": "open"}
        )
        text = json.dumps(order)
    order["items"][-1]["state"] = last_state
    return json.dumps(order)
