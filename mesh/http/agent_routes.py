"""The agents of turns over HTTP: people look at them, and step in."""

from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.model import Limits
from mesh.core.errors import BadRequest
from mesh.core.ids import is_id
from mesh.core.messages import Assistant, Message, User
from mesh.http.backend import Backend
from mesh.http.body_types import AgentBody, AgentMessage, InterventionBody
from mesh.http.parsing import caller_of, json_object, page_query, read_request, text_in
from mesh.http.responses import json_response, route
from mesh.http.streams import Streams, last_cursors, last_event_id, wants_stream
from mesh.keeper.requests import AgentChanges, Caller, ChangedBudget, Intervene, ListAgents, ShowAgent

MOST_AT_ONCE = 1_000
"""Agents of one page."""
_MOST_REASON = 4_000
"""In bytes. A reason is told to the model of the agent above, and kept for ever."""
_MOST_NAME = 64
_KEYS = ("action", "text", "reason", "changes", "restart", "now")
_HOW = (
    'say {"action": "comment", "text": "…"}, or {"action": "pause"}, "resume" or "delete", with a '
    '"reason" if you like, or {"action": "modify", "changes": {…}}; or, as older clients do, '
    '{"userComment": "…"} or {"status": "deleted"}, "running"'
)


class AgentRoutes:
    """The handlers of the routes."""

    def __init__(self, backend: Backend, streams: Streams, limits: Limits) -> None:
        self._backend = backend
        self._streams = streams
        self._limits = limits

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("GET", "/agent/tree", self._list),
            route("GET", "/agent/{agent_id}", self._show),
            route("GET", "/agent/{agent_id}/events", self._events),
            route("POST", "/agent/{agent_id}/intervene", self._intervene),
            route("POST", "/agent/{agent_id}/spawn", self._spawn),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        conversation, shows_ended = query.get("conversation", ""), query.get("all", "false")
        if conversation and not is_id(conversation):
            raise BadRequest("conversation must be the id of a conversation")
        if shows_ended not in ("true", "false"):
            raise BadRequest("all must be true or false")
        if wants_stream(request):
            return await self._streams.agents(conversation, last_cursors(request, self._backend.shards))
        limit, cursor = page_query(request, most=MOST_AT_ONCE, usual=MOST_AT_ONCE)
        asked = ListAgents(conversation, shows_ended == "true", cursor, limit + 1)
        if conversation:
            replies = [await self._backend.ask(conversation, asked)]
        else:
            replies = await self._backend.ask_all(asked)
        agents = sorted((a for reply in replies for a in reply.agents), key=attrgetter("cursor"))
        page = agents[:limit]
        headers = {}
        if len(agents) > limit:
            following = request.url.include_query_params(cursor=page[-1].cursor)
            headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
        return json_response({agent.agent_id: agent for agent in page}, headers=headers)

    async def _show(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        reply = await self._backend.ask(agent_id, ShowAgent(agent_id))
        messages = [shown for message in reply.messages or () for shown in _shown(message)]
        return json_response(AgentBody(reply.agent, messages))

    async def _events(self, request: Request) -> Response:
        agent_id, after = request.path_params["agent_id"], last_event_id(request)
        reply = await self._backend.ask(agent_id, ShowAgent(agent_id))
        return await self._streams.subtree(reply.agent, after)

    async def _intervene(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        raw = await read_request(request, self._limits.max_body_bytes)
        asked = self._intervention_in(json_object(raw), agent_id, caller_of(request, raw))
        reply = await self._backend.ask(agent_id, asked)
        return json_response(InterventionBody(reply.agent))

    async def _spawn(self, request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        raw = await read_request(request, self._limits.max_body_bytes)
        body, caller = json_object(raw), caller_of(request, raw)
        most = self._limits.max_message_bytes
        name, task = text_in(body, "agent", most), text_in(body, "task", most)
        reply = await self._backend.ask(agent_id, Intervene(agent_id, caller, "spawn", task, adds=name))
        return json_response(InterventionBody(reply.agent))

    def _intervention_in(self, body: dict[str, Any], agent_id: str, caller: Caller) -> Intervene:
        """The intervention in a body, in any of its forms. What is unknown, or of no use, is refused."""
        action = body.get("action", _older_action(body))
        if "action" in body and (unknown := sorted(body.keys() - _KEYS)):
            raise BadRequest(f'"{unknown[0][:_MOST_NAME]}" is unknown; expected {", ".join(_KEYS)}')
        if body.get("restart") and action != "modify":
            raise BadRequest('"restart" goes with {"action": "modify"}')
        if action == "delete":
            return Intervene(agent_id, caller, "delete", _reason_in(body))
        now = body.get("now", False)
        if not isinstance(now, bool):
            raise BadRequest('"now" must be true or false')
        if action in ("pause", "resume"):
            return Intervene(agent_id, caller, action, _reason_in(body), now=now)
        if action == "modify":
            restarts = body.get("restart", False)
            if not isinstance(restarts, bool):
                raise BadRequest('"restart" must be true or false')
            older = _older_changes(body) if "action" not in body else None
            changes = AgentChanges()
            if not restarts or "changes" in body:
                changes = self._changes_in(body, older)
            return Intervene(agent_id, caller, "modify", _reason_in(body), changes, now, restarts=restarts)
        if action != "comment":
            raise BadRequest(_HOW)
        name = "text" if "action" in body else "userComment"
        text = text_in(body, name, self._limits.max_message_bytes)
        return Intervene(agent_id, caller, "comment", text, now=now)

    def _changes_in(self, body: dict[str, Any], older: Any) -> AgentChanges:
        given = body.get("changes") if older is None else older
        try:
            changes = msgspec.convert(given, AgentChanges)
        except msgspec.ValidationError as problem:
            raise BadRequest(
                f'"changes": {problem}; it may have {", ".join(AgentChanges.__struct_fields__)}'
            ) from None
        if not changes.given:
            raise BadRequest(f'"changes" must have one of {", ".join(AgentChanges.__struct_fields__)}')
        if changes.budget is not UNSET and changes.budget == ChangedBudget():
            limits = ", ".join(ChangedBudget.__struct_fields__)
            raise BadRequest(f'"changes": a budget must have one of {limits}')
        if len(msgspec.json.encode(changes)) > self._limits.max_message_bytes:
            raise BadRequest(f'"changes" has more than {self._limits.max_message_bytes} bytes')
        if changes.task is not UNSET and not changes.task.strip():
            raise BadRequest('"changes": a task must not be empty')
        return changes


def _reason_in(body: dict[str, Any]) -> str:
    reason = body.get("reason", body.get("text", ""))
    if not isinstance(reason, str) or len(reason.encode()) > _MOST_REASON:
        raise BadRequest(f'"reason" must be a text of at most {_MOST_REASON} bytes')
    return reason.strip()


def _older_action(body: dict[str, Any]) -> str:
    """What a client of the older form wants."""
    comment = body.get("userComment")
    if body.get("status") == "deleted" or comment == "delete":
        return "delete"
    if body.get("status") == "running" and comment in (None, "unchanged"):
        return "resume"
    if comment == "modify" or (body.get("status") == "modify" and comment in (None, "unchanged")):
        return "modify"
    return "comment" if comment not in (None, "unchanged") else ""


def _older_changes(body: dict[str, Any]) -> dict[str, Any]:
    return {"task": body.get("userContent")}


def _shown(message: Message) -> list[AgentMessage]:
    match message:
        case User():
            return [AgentMessage("user", message.text)]
        case Assistant():
            return [AgentMessage("assistant", message.text, tool_calls=message.tool_calls)]
        case _:
            return [AgentMessage("tool", r.content, r.name, r.is_error) for r in message.results]
