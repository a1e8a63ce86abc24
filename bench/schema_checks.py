"""``python -m bench.schema_checks``: what a check by jsonschema-rs can cost, and what counting the work does.

The figures of `docs/decisions/schema-checks.md`.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from mesh.mcp.schema import problems, refusal

ORDINARY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": "^[a-z/._-]+$", "maxLength": 200},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"line": {"type": "integer", "minimum": 1}, "text": {"type": "string"}},
                "required": ["line", "text"],
            },
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}
ARGUMENTS = {"path": "src/main.py", "edits": [{"line": n + 1, "text": "x = 1"} for n in range(10)]}


def doubling(levels: int, keyword: str) -> dict[str, Any]:
    """A schema of some 60 bytes a level that asks for 2 ** levels visits."""
    definitions: dict[str, Any] = {"s0": {"type": "string"}}
    for level in range(levels):
        definitions[f"s{level + 1}"] = {keyword: [{"$ref": f"#/$defs/s{level}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/s{levels}"}


def nested(levels: int) -> tuple[dict[str, Any], Any]:
    """A recursive schema that refers to itself twice, and a value nested so deeply that does not fit."""
    twice = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return {"type": "object", "properties": {"a": twice}}, value


def ms(work: Callable[[], Any], least_s: float = 0.2) -> float:
    """Milliseconds that a piece of work takes, the best of several."""
    best, until = float("inf"), time.perf_counter() + least_s
    while True:
        started = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - started)
        if now > until:
            return round(best * 1000, 4)


def keeps_the_gil(work: Callable[[], Any]) -> bool:
    """Whether another thread stands still meanwhile."""
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.05)
    before, started = ticks[0], time.perf_counter()
    work()
    took_ms, counted = 1000 * (time.perf_counter() - started), ticks[0] - before
    done.set()
    thread.join()
    return counted < took_ms / 20


def main() -> None:
    show = lambda what, **figures: print(json.dumps({"what": what, **figures}), flush=True)  # noqa: E731
    plain = jsonschema_rs.validator_for(ORDINARY)
    show(
        "an ordinary call",
        validator_ms=ms(lambda: plain.is_valid(ARGUMENTS)),
        checked_here_ms=ms(lambda: problems(ORDINARY, ARGUMENTS)),
    )
    for keyword in ("allOf", "anyOf"):
        for levels in (16, 18, 20):
            schema = doubling(levels, keyword)
            validator = jsonschema_rs.validator_for(schema)
            value: Any = "x" if keyword == "allOf" else 1  # what makes it look at every branch
            show(
                f"{keyword} doubled {levels} times, {len(json.dumps(schema))} bytes",
                validator_ms=ms(lambda v=validator, x=value: v.is_valid(x)),
                refused=bool(refusal(schema)),
            )
    for levels in (8, 10, 12):
        schema, value = nested(levels)
        validator = jsonschema_rs.validator_for(schema)
        show(
            f"a recursive schema, a value nested {levels} deep",
            is_valid_ms=ms(lambda v=validator, x=value: v.is_valid(x)),
            first_error_ms=ms(lambda v=validator, x=value: next(v.iter_errors(x))),
            checked_here_ms=ms(lambda s=schema, x=value: problems(s, x)),
        )
    schema = doubling(24, "allOf")
    validator = jsonschema_rs.validator_for(schema)
    show("another thread stands still during a check", so=keeps_the_gil(lambda: validator.is_valid("x")))
    for pattern in ("^(a+)+$", r"(a|a)*\1b"):
        default = jsonschema_rs.validator_for({"pattern": pattern})
        text = "a" * 28 + "!"
        show(
            f"pattern {pattern}, 29 characters",
            default_ms=ms(lambda v=default, t=text: v.is_valid(t)),
            checked_here_ms=ms(lambda p=pattern, t=text: problems({"pattern": p}, t)),
        )


if __name__ == "__main__":
    main()
