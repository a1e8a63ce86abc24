"""The provider keeps the promises of the mesh, against a server that speaks Ollama's format by a script."""

import json
import sys
from typing import Any

import msgspec

from mesh.testing.conformance import (
    ModelRequest,
    ProviderConformance,
    ScriptedAnswer,
    pieces,
    serve,
    usage_of,
)


class OllamaWire:
    """Ollama's format, as the scripted server reads and writes it."""

    def read(self, path: str, body: bytes) -> ModelRequest:
        request = msgspec.json.decode(body)
        said = [each for each in request["messages"] if each["role"] in ("user", "tool")]
        return ModelRequest(
            format="ollama",
            model=request["model"],
            last=said[-1]["content"],
            speaker="user" if said[-1]["role"] == "user" else "tool",
            tools=frozenset(tool["function"]["name"] for tool in request.get("tools", ())),
            conversation_call=1 + sum(each["role"] == "assistant" for each in request["messages"]),
            stream=request["stream"],
            size=len(body),
            output_schema=request.get("format"),
        )

    def plain(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
        return self._line(answer.text, answer, self._end(call, answer))

    def chunks(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
        texts = [self._line(piece, None, {"done": False}) for piece in pieces(answer.text)]
        return [
            *texts,
            self._line("", answer, {"done": False}),
            self._line("", None, self._end(call, answer)),
        ]

    def error(self, status: int, message: str) -> bytes:
        return json.dumps({"error": message}).encode()

    def _line(self, text: str, answer: ScriptedAnswer | None, end: dict[str, Any]) -> bytes:
        calls = [
            {"function": {"name": call.name, "arguments": call.malformed or call.arguments}}
            for call in (answer.tool_calls if answer else ())
        ]
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        return json.dumps({"message": message, **end}).encode() + b"\n"

    def _end(self, call: ModelRequest, answer: ScriptedAnswer) -> dict[str, Any]:
        usage = usage_of(call, answer)
        counts = {"prompt_eval_count": usage.input, "eval_count": usage.output}
        return {"done": True, "done_reason": answer.finish or "stop", **counts}


class TestOllamaCloud(ProviderConformance):
    model = "ollama-cloud:gpt-oss:120b"
    path = "/api/chat"
    wire = OllamaWire()
    has_call_ids = False


if __name__ == "__main__":  # the scripted server by itself, to try an agent
    serve("127.0.0.1", int(sys.argv[1]), formats={TestOllamaCloud.path: OllamaWire()})
