"""The routes of events: streams of what happens, conversations as logs, what they spent, and the agent's
tree."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.access.principal import principal_in
from mesh.config.model import Config
from mesh.core.actions import action_lines, actions
from mesh.core.errors import BadRequest
from mesh.core.events import NAMES, AnyEvent, Spend, decode, now
from mesh.core.ids import SESSION_IDS, is_session_id
from mesh.core.spend_of_runs import turn_spend
from mesh.core.spending import RunSpend, SpendReport, TurnSpend, root_agent, spend_report
from mesh.http.backend import Backend
from mesh.http.body_types import TreeBody
from mesh.http.parsing import read_request
from mesh.http.responses import json_response, route, turn_response
from mesh.http.streams import Streams, last_cursors, last_event_id
from mesh.keeper.replies import JournalLines
from mesh.keeper.requests import Export, Follow, Import
from mesh.keeper.transfer import created_in
from mesh.llm.prices import Prices
from mesh.tree.configured_limits import limits_by_path
from mesh.tree.outline import outline, outlines_of_called_agents


class EventRoutes:
    """The handlers of the routes."""

    def __init__(self, backend: Backend, streams: Streams, config: Config) -> None:
        self._backend = backend
        self._streams = streams
        self._root = config.tree.name
        self._limits = limits_by_path(config)
        self._prices = Prices(config.llm.prices)
        self._max_log_bytes = config.limits.max_log_bytes
        # Beside the tree, not in it: clients that know of no agents to call show the tree as it was.
        self._trees = TreeBody(outline(config), outlines_of_called_agents(config))

    def routes(self) -> list[Route]:
        """The routes. That of imports has to come before those of a conversation."""
        return [
            route("POST", "/conversations/import", self._import),
            route("GET", "/conversations/{conversation_id}/events", self._events),
            route("GET", "/conversations/{conversation_id}/log", self._log),
            route("GET", "/conversations/{conversation_id}/spend", self._spend),
            route("GET", "/conversations/{conversation_id}/actions", self._actions),
            route("GET", "/events", self._all_events),
            route("GET", "/tree", self._show_tree),
        ]

    async def _show_tree(self, request: Request) -> Response:
        return json_response(self._trees)

    async def _events(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        return await self._streams.conversation(conversation_id, last_event_id(request))

    async def _all_events(self, request: Request) -> Response:
        query = request.query_params
        types = tuple(filter(None, query.get("type", "").split(",")))
        if unknown := [name for name in types if name not in NAMES]:
            raise BadRequest(f"there is no event {unknown[0][:64]!r}; there are {', '.join(sorted(NAMES))}")
        session_id = query.get("session_id", "")
        if session_id and not is_session_id(session_id):
            raise BadRequest(f"session_id must be {SESSION_IDS}")
        follow = Follow(types=types, session_id=session_id)
        return await self._streams.everything(follow, last_cursors(request, self._backend.shards))

    async def _log(self, request: Request) -> Response:
        lines = await self._exported(request)
        return _lines_response(lines.content, lines.session_id)

    async def _exported(self, request: Request) -> JournalLines:
        conversation_id = request.path_params["conversation_id"]
        return await self._backend.ask(conversation_id, Export(conversation_id))

    async def _spend(self, request: Request) -> Response:
        lines = await self._exported(request)
        # In a thread, as a long journal takes a while and this process answers others meanwhile.
        report = await asyncio.to_thread(self._report, lines.content)
        return json_response(report, headers={"X-Session-ID": lines.session_id})

    def _report(self, content: bytes) -> SpendReport:
        events = _events_in(content)
        report = spend_report(events, root_agent(events, self._root), self._prices.nusd)
        of_turn, *runs = map(_amounts, turn_spend(events, self._limits, now()))
        if not of_turn["limits"] and not runs:
            return report
        turn = TurnSpend(
            number=max(event.turn for event in events),
            seq=events[-1].seq,
            runs=[RunSpend(**run) for run in runs],
            **of_turn,
        )
        return msgspec.structs.replace(report, turn=turn)

    async def _actions(self, request: Request) -> Response:
        lines = await self._exported(request)
        found = await asyncio.to_thread(self._action_lines, lines.content)
        return _lines_response(found, lines.session_id)

    def _action_lines(self, content: bytes) -> bytes:
        return action_lines(actions(_events_in(content), self._root, self._prices.nusd))

    async def _import(self, request: Request) -> Response:
        content = await read_request(request, self._max_log_bytes, "limits.max_log_bytes")
        created, principal = created_in(content), principal_in(request.scope)
        owner = created.conversation_id
        take_in = Import(owner, content, principal.name if principal else "")
        return turn_response(await self._backend.ask(owner, take_in), 201)


def _amounts(spend: Spend) -> dict[str, Any]:
    """The fields of `RunSpend`."""
    names = ("limits", "spent", "unsettled", "reserved")
    return {"place": spend.step, **{name: getattr(spend, name) for name in names}}


def _events_in(content: bytes) -> list[AnyEvent]:
    return [decode(line) for line in content.split(b"\n") if line]


def _lines_response(content: bytes, session_id: str) -> Response:
    """A response of JSON lines."""
    return Response(content, headers={"X-Session-ID": session_id}, media_type="application/x-ndjson")
