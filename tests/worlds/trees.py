"""Trees to test with, and a model that answers each node by its system prompt."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import yaml

from mesh.core.events import Event, LlmCall
from mesh.core.messages import Results, ToolSpec
from mesh.llm.port import LlmRequest
from tests.worlds.mesh import calls, says

Node = dict[str, Any]


def config(tree: Node, **more: Any) -> str:
    return yaml.safe_dump({"name": "test", "llm": {"model": "scripted"}, "agent": tree, **more})


def llm(name: str, prompt: str = "", **more: Any) -> Node:
    return {"name": name, "type": "llm", "prompt": f"{name}: {prompt}", **more}


def sequential(*children: Node, name: str = "steps", **more: Any) -> Node:
    return {"name": name, "type": "sequential", "agents": list(children), **more}


def parallel(*children: Node, name: str = "branches", **more: Any) -> Node:
    return {"name": name, "type": "parallel", "agents": list(children), **more}


def loop(*children: Node, name: str = "rounds", **more: Any) -> Node:
    return {"name": name, "type": "loop", "agents": list(children), **more}


def tool(name: str, tool: str, **args: Any) -> Node:
    return {"name": name, "type": "tool", "tool": tool, "args": args}


class ByNode:
    """An `Llm` that knows which node asks: by the name before the colon of its system prompt.

    Each node says its prompt back, or what ``script`` has for it, one answer a model call of one run of
    the node (by the number of results it has seen). ``gates`` hold a node's calls until they are set.
    """

    def __init__(self, **script: list[LlmCall] | LlmCall) -> None:
        self._script = {name: [s] if isinstance(s, LlmCall) else s for name, s in script.items()}
        self.asked: Counter[str] = Counter()
        self.prompts: list[str] = []
        self.messages: dict[str, list[Any]] = {}
        self.requests: dict[str, LlmRequest] = {}
        self.tools: dict[str, dict[str, ToolSpec]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.fails: set[str] = set()

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        name, _, said = request.system.partition(": ")
        self.asked[name] += 1
        self.prompts.append(request.system)
        self.requests[name] = request
        self.messages[name] = list(request.messages)
        self.tools[name] = {tool.name: tool for tool in request.tools}
        if name in self.gates:
            await asyncio.wait_for(self.gates[name].wait(), 30)
        if name in self.fails:
            raise ZeroDivisionError(name)
        seen = sum(isinstance(message, Results) for message in request.messages)
        script = self._script.get(name, [])
        yield script[seen] if seen < len(script) else says(f"{name} says {said}".rstrip())

    async def close(self) -> None:
        return None


def add(n: int) -> LlmCall:
    """The model wants the destructive tool."""
    return calls(("add", {"n": n}))


EXIT = calls(("exit_loop", {}))
