"""``python -m bench.structured_output``: what answers with a schema cost, and how many schemas a form takes.

The figures of `docs/decisions/structured-output.md`. Times are CPU of this process alone, the least of
several rounds, since whatever else the machine does can only add to it.
"""

import asyncio
import json
import time
import timeit
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings

from mesh.core.messages import User
from mesh.llm.answer_check import checked
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.routing import provider_for
from mesh.llm.schema_forms import ANTHROPIC, GEMINI, OPENAI, NotExpressible, in_form
from mesh.servers.llm_stub import LlmStub
from tests.llm.pydantic_models import Model, models
from tests.worlds.providers import FORMATS, MODELS, env_for

FORMS = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}
LINE = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        "name": {"type": "string", "maxLength": 80},
        "count": {"type": "integer", "minimum": 1},
        "price": {"type": "number", "minimum": 0},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["new", "sale", "gift"]}},
    },
    "required": ["sku", "name", "count", "price", "day", "tags"],
    "additionalProperties": False,
}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
    "required": ["id", "lines"],
    "additionalProperties": False,
    "$defs": {"line": LINE},
}
CALLS = 300


def order(lines: int) -> str:
    """An answer of some 125 bytes a line."""
    line = {"name": "A thing of some kind", "price": 1.5, "day": "2026-11-23", "tags": ["new", "gift"]}
    return json.dumps(
        {"id": "A-1", "lines": [{"sku": f"AB-{n}", "count": n + 1, **line} for n in range(lines)]}
    )


def show(what: str, **figures: Any) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def cpu_ms(work: Callable[[], Any], times: int = 500) -> float:
    """Milliseconds of CPU that a piece of work takes."""
    return round(min(timeit.repeat(work, number=times, repeat=7, timer=time.process_time)) / times * 1000, 4)


def checks() -> None:
    for lines in (4, 15, 80):
        answer = order(lines)
        wrong = answer.replace('"count": 3,', '"count": 0,')
        assert checked(ORDER, answer).problem == "" != checked(ORDER, wrong).problem
        show(
            f"a check of {len(answer):,} bytes",
            fits_ms=cpu_ms(lambda text=answer: checked(ORDER, text)),
            wrong_ms=cpu_ms(lambda text=wrong: checked(ORDER, text), 50),
        )


def conversions() -> None:
    show("conversion of a schema", **{n: cpu_ms(lambda f=f: in_form(ORDER, f)) for n, f in FORMS.items()})
    taken, reasons = Counter[str](), Counter[str]()

    @settings(
        max_examples=200,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def each(drawn: Model) -> None:
        for name, form in FORMS.items():
            try:
                in_form(drawn.model.model_json_schema(), form)
                taken[name] += 1
            except NotExpressible as reason:
                reasons[f"{name}: {str(reason).partition(chr(39))[0].strip()}"] += 1

    each()
    show("of 200 generated models, in the provider's form", **taken)
    show("of the others", **dict(reasons.most_common()))


async def calls() -> None:
    """A call with a schema beside one without: in the provider's form, and by the tool after a refusal."""
    refusal = {"match": {"output_schema": True}, "answer": {"status": 400}}
    ends = {"tool_calls": [{"name": "complete_task", "arguments": json.loads(order(4))}]}
    rules = [{"match": {"tools": ["complete_task"]}, "answer": ends}, {"answer": {"text": order(4)}}]
    for wire in FORMATS:
        async with LlmStub({"rules": rules}) as taking, LlmStub({"rules": [refusal, *rules]}) as refusing:
            plain, form = provider_for(MODELS[wire], env_for(taking.url)), _request(wire)
            tool = provider_for(MODELS[wire], env_for(refusing.url))
            without = msgspec.structs.replace(form, output_schema=None)
            rounds = [
                (await _cpu_ms(plain, without), await _cpu_ms(plain, form), await _cpu_ms(tool, form))
                for _ in range(5)
            ]
            least = [round(min(each), 3) for each in zip(*rounds, strict=True)]
            show(
                f"a call, {wire}, with the server", **dict(zip(("none", "form", "tool"), least, strict=True))
            )
            await plain.close()
            await tool.close()


def _request(wire: str) -> LlmRequest:
    return LlmRequest(model=MODELS[wire], system="", messages=(User("How much?"),), output_schema=ORDER)


async def _cpu_ms(llm: Llm, request: LlmRequest) -> float:
    started = time.process_time()
    for _ in range(CALLS):
        async for _ in llm.stream(request):
            pass
    return (time.process_time() - started) / CALLS * 1000


def main() -> None:
    checks()
    conversions()
    asyncio.run(calls())


if __name__ == "__main__":
    main()
