"""How a test speaks with a client: a JSON object a line, both ways.

In: {"id": 1, "do": "send", …}. Out, for each thing that the client gets, what it is:
{"id": 1, "kind", "task", "context", "state", "text", "says"}; and when it is over {"id": 1, "over": true} or
{"id": 1, "error": "…"}. Requests run side by side.

``do``: send {text, task?, context?} waits for the answer; start: the same, returns at once; stream: the
same, as events; get {task}; cancel {task}; watch {task}: the events of a task from now on; list {context}:
its tasks (not in 0.3). The first three take {push, token, credentials}: where to tell of the task, and what
shows who it is that tells.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

Verbs = Callable[[dict[str, Any]], AsyncIterator[dict[str, Any]]]


def say(thing: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(thing) + "\n")
    sys.stdout.flush()


async def serve(verbs: Verbs) -> None:
    """Until there are no more lines."""
    loop = asyncio.get_running_loop()
    running = set()
    say({"ready": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(_answer(verbs, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()


async def _answer(verbs: Verbs, request: dict[str, Any]) -> None:
    number = request["id"]
    try:
        async for event in verbs(request):
            say({"id": number, **event})
        say({"id": number, "over": True})
    except Exception as problem:  # noqa: BLE001  # whatever a client raises is what the test wants to see
        say({"id": number, "error": f"{type(problem).__name__}: {problem}"})
