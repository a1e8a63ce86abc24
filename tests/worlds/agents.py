"""An agent to talk to, behind a real HTTP server, in each dialect of A2A; and its faults.

What it does is said in words: ``echo X``, ``ask a b`` (two approvals wait), ``work 3`` (done when asked
about three times), ``forever``, ``auth`` (needs a bearer token). `Agent.ledger` has what it did.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from aiohttp import web

from mesh.a2a.extensions import HITL, MESH
from mesh.core.events import DecisionProtocol

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]
Dialect = Literal["1.0", "1.0 rest", "0.3", "plain"]
GARBAGE: dict[str, Any] = {"jsonrpc": "2.0"}


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """The URL at which an app is served."""
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def cut(request: web.Request, handler: Handler) -> web.StreamResponse:
    """It did what it was asked, and nobody hears of it."""
    await handler(request)
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut_halfway(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Half of an answer."""
    whole = await handler(request)
    assert isinstance(whole, web.Response) and isinstance(whole.body, bytes)
    half = web.StreamResponse(headers={"Content-Length": str(len(whole.body))})
    half.content_type = "application/json"
    await half.prepare(request)
    await half.write(whole.body[:20])
    assert request.transport is not None
    request.transport.close()
    return half


async def cut_before(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The message never got to the agent, but nobody knows that."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(request: web.Request, handler: Handler) -> web.StreamResponse:
    """It does what it was asked, and says nothing."""
    await handler(request)
    await asyncio.sleep(60)
    return web.Response()


def answers(status: int = 200, **what: Any) -> Fault:
    """Something else than an answer."""

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        if "json" in what:
            return web.json_response(what["json"], status=status)
        return web.Response(status=status, **what)

    return fault


def replies(result: Any = None, error: Any = None) -> Fault:
    """A well-formed JSON-RPC answer of any content."""

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        outcome = {"error": error} if error else {"result": result}
        return web.json_response({"jsonrpc": "2.0", "id": (await request.json())["id"], **outcome})

    return fault


async def no_fault(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What it does anyway."""
    return await handler(request)


class Agent:
    """The agent behind `Agent.app`. ``faults`` are taken one a request, ``send_faults`` one a message, and
    ``card_faults`` one a card; ``requests`` has every request's headers. ``once``: message ids count once,
    and the card says so."""

    def __init__(
        self, dialect: Dialect = "1.0", protocol: DecisionProtocol = "mesh", *, once: bool = True
    ) -> None:
        self.dialect = dialect
        self.protocol = protocol
        self.once = once
        self.has_card = True
        self.ledger: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.faults: list[Fault] = []
        self.send_faults: list[Fault] = []
        self.card_faults: list[Fault] = []
        self._tasks: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, str] = {}
        self._ids = itertools.count(1)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/agent-card.json", self._card)
        app.router.add_post("/a2a", self._guarded(self._rpc))
        app.router.add_post("/v1/message:send", self._guarded(self._rest_send))
        app.router.add_get("/v1/tasks/{id}", self._guarded(self._rest_get))
        app.router.add_get("/v1/tasks", self._guarded(self._rest_list))
        app.router.add_post("/v1/tasks/{id}:cancel", self._guarded(self._rest_cancel))
        return app

    async def _card(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, dict(request.headers)))
        if self.card_faults:
            return await self.card_faults.pop(0)(request, self._card)
        if not self.has_card:
            return web.Response(status=404, text="no such page")
        root = str(request.url.origin())
        about = {"name": "peer", "description": "…", "version": "1", "skills": []}
        capabilities: dict[str, Any] = {"extensions": [{"uri": MESH}] if self.once else []}
        card: dict[str, Any] = {**about, "capabilities": capabilities}
        if self.dialect in ("0.3", "plain"):
            return web.json_response({**card, "url": f"{root}/a2a", "protocolVersion": "0.3.0"})
        one = {"url": f"{root}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        if self.dialect == "1.0 rest":
            one = {"url": f"{root}/v1", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        return web.json_response({**card, "supportedInterfaces": [one]})

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            self.requests.append((request.path_qs, dict(request.headers)))
            if self.faults:
                return await self.faults.pop(0)(request, handler)
            if self.send_faults and await _is_sending(request):
                return await self.send_faults.pop(0)(request, handler)
            return await handler(request)

        return guarded

    async def _rpc(self, request: web.Request) -> web.Response:
        asked = await request.json()
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        try:
            answer["result"] = self._run(asked["method"], asked["params"], request)
        except _Refused as error:
            answer["error"] = {"code": error.code, "message": error.message}
        return web.json_response(answer)

    def _run(self, method: str, params: dict[str, Any], request: web.Request) -> Any:
        if self.dialect == "1.0 rest":
            raise _Refused(-32601, "method not found")
        is_v1 = self.dialect == "1.0"
        names = (
            ("SendMessage", "GetTask", "CancelTask")
            if is_v1
            else ("message/send", "tasks/get", "tasks/cancel")
        )
        if method == "ListTasks" and is_v1:
            return {"tasks": [self._shown(task) for task in self._of_context(params["contextId"])]}
        if method not in names:
            raise _Refused(-32601, f"method not found: {method}")
        if method == names[0]:
            task = self._shown(self._hear(params, request))
            return {"task": task} if is_v1 else task
        return self._shown(self._get(params["id"]) if method == names[1] else self._cancel(params["id"]))

    async def _rest_send(self, request: web.Request) -> web.Response:
        return web.json_response({"task": self._shown(self._hear(await request.json(), request))})

    async def _rest_get(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._get(request.match_info["id"])))

    async def _rest_cancel(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(self._shown(self._cancel(request.match_info["id"])))
        except _Refused as error:
            return web.json_response({"error": {"code": 404, "message": error.message}}, status=404)

    async def _rest_list(self, request: web.Request) -> web.Response:
        tasks = self._of_context(request.query["contextId"])
        return web.json_response({"tasks": [self._shown(task) for task in tasks]})

    def _hear(self, params: dict[str, Any], request: web.Request) -> dict[str, Any]:
        message = params["message"]
        key = {"1.0": "text", "1.0 rest": "text", "0.3": "kind", "plain": "type"}[self.dialect]
        part = message["parts"][0]
        if key not in part or ("text" in (part.get("kind"), part.get("type"))) != (key != "text"):
            raise _Refused(-32602, "invalid parameters")
        self.heard.append(params)
        task_id = message.get("taskId") or params.get("taskId")
        said = message.get("messageId")
        if self.once and said in self._seen:
            return self._tasks[self._seen[said]]
        task = self._get(task_id) if task_id else self._new(message)
        if said:
            self._seen[said] = task["id"]
        waiting = task["waits"] or task["state"] == "auth-required"
        if task_id and waiting:
            self._decide(task, part["text"], message.get("metadata", {}), request)
        else:
            self._begin(task, part["text"], request)
        return task

    def _new(self, message: dict[str, Any]) -> dict[str, Any]:
        task_id = f"task-{next(self._ids)}"
        context = message.get("contextId", "")
        task = {"id": task_id, "context": context, "state": "working", "text": "", "waits": [], "done": {}}
        self._tasks[task_id] = task
        return task

    def _begin(self, task: dict[str, Any], text: str, request: web.Request) -> None:
        command, _, rest = text.partition(" ")
        match command:
            case "echo":
                self._finish(task, rest)
            case "ask":
                task["waits"] = rest.split()
                self._move(task, "input-required", f"May I {rest}?")
            case "work":
                task["left"] = int(rest)
                self._move(task, "working", "on it")
            case "forever":
                self._move(task, "working", "on it")
            case "auth" if "Authorization" not in request.headers:
                self._move(task, "auth-required", "Who are you?")
            case "auth":
                self._finish(task, "welcome")
            case _:
                self._move(task, "failed", f"I do not understand {text}")

    def _decide(
        self, task: dict[str, Any], text: str, metadata: dict[str, Any], request: web.Request
    ) -> None:
        if task["state"] == "auth-required":
            return self._begin(task, "auth", request)
        if MESH in metadata:
            for one in metadata[MESH]["decisions"]:
                name = one["uuid"].rpartition("/")[2]
                if name in task["waits"]:
                    task["waits"].remove(name)
                    task["done"][name] = f"{one['decision']} {one.get('edited_args') or ''}".strip()
        elif HITL in metadata:
            approvals = {one["id"]: one for one in metadata[HITL]["approvals"]}
            if set(approvals) != {f"{task['id']}/{name}" for name in task["waits"]}:
                raise _Refused(-32602, "every call must be decided")
            task["done"] = {
                name: str(approvals[f"{task['id']}/{name}"]["approved"]) for name in task["waits"]
            }
            task["waits"] = []
        elif text in ("yes", "no"):
            task["done"][task["waits"].pop(0)] = text
        if task["waits"]:
            return self._move(task, "input-required", f"May I {' '.join(task['waits'])}?")
        return self._finish(task, ", ".join(f"{name}: {how}" for name, how in task["done"].items()))

    def _get(self, task_id: str) -> dict[str, Any]:
        if task_id not in self._tasks:
            raise _Refused(-32001, "task not found")
        task = self._tasks[task_id]
        if "left" in task and task["state"] == "working":
            task["left"] -= 1
            if task["left"] <= 0:
                self._finish(task, "done")
        return task

    def _cancel(self, task_id: str) -> dict[str, Any]:
        task = self._get(task_id)
        self.ledger.append(f"cancel {task_id}")
        self._move(task, "canceled", "stopped")
        return task

    def _of_context(self, context: str) -> list[dict[str, Any]]:
        return [task for task in reversed(self._tasks.values()) if task["context"] == context]

    def _finish(self, task: dict[str, Any], text: str) -> None:
        self.ledger.append(text)
        self._move(task, "completed", text)

    def _move(self, task: dict[str, Any], state: str, text: str) -> None:
        task.update(state=state, text=text, message=f"m-{next(self._ids)}", moment=next(self._ids))

    def _shown(self, task: dict[str, Any]) -> dict[str, Any]:
        is_v1 = self.dialect.startswith("1.0")
        kind = {"0.3": {"kind": "text"}, "plain": {"type": "text"}}.get(self.dialect, {})
        parts = [{**kind, "text": task["text"]}]
        state = task["state"]
        status: dict[str, Any] = {
            "state": f"TASK_STATE_{state.upper().replace('-', '_')}" if is_v1 else state
        }
        shown: dict[str, Any] = {"id": task["id"], "status": status}
        if self.dialect != "plain":
            status["timestamp"] = f"2026-01-01T00:00:00.{task['moment']:06}Z"
            shown["contextId"] = task["context"]
        if state == "completed":
            artifact = {"artifact": {"parts": parts}}
            return {**shown, **(artifact if self.dialect == "plain" else {"artifacts": [{"parts": parts}]})}
        status["message"] = {"role": "agent", "parts": parts, "metadata": self._asks(task)}
        if self.dialect != "plain":
            status["message"]["messageId"] = task["message"]
        return shown

    def _asks(self, task: dict[str, Any]) -> dict[str, Any]:
        ids = [(f"{task['id']}/{name}", name) for name in task["waits"]]
        if not ids or self.protocol == "text":
            return {}
        if self.protocol == "hitl":
            tools = [{"id": one, "call_id": one, "name": name, "args": {"n": 1}} for one, name in ids]
            return {HITL: {"type": "tool_approval_request", "hint": "Allow?", "tools": tools}}
        approvals = [
            {
                "uuid": one,
                "kind": "tool_call",
                "tool_name": name,
                "tool_args": {"n": 1},
                "description": f"{name}?",
            }
            for one, name in ids
        ]
        return {MESH: {"approvals": approvals}}


async def _is_sending(request: web.Request) -> bool:
    if request.path.endswith("/a2a"):
        return (await request.json())["method"] in ("SendMessage", "message/send")
    return request.path.endswith(":send")


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
