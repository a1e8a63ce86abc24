"""An agent as a function, for Python programs that hold no client.

    import asyncio
    from mesh.client import agent

    answer = asyncio.run(agent("Which of the three cities is the cheapest?"))
    print(answer.response)

The mesh is that of ``MESH_URL``, by default the one on port 8080 of this machine; ``MESH_KEY`` is an API key
for it. Each function also takes a `MeshClient` (``client``), which may lead elsewhere, and keeps its
connections. Each has a deadline, in seconds.

Raises `MeshUnreachable`, `RequestRefused`, and `TimeoutError` after the deadline.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from mesh.client.responses import AgentAnswer, ShownAgent
from mesh.client.rest import MeshClient, RequestRefused
from mesh.core.agents_of_turn import AgentView
from mesh.core.approvals import APPROVAL_KINDS, Decision
from mesh.core.view import PendingApproval

DEFAULT_URL = "http://127.0.0.1:8080"
ANSWERED_WITHIN_S = 3_600.0
SHOWN_WITHIN_S = 60.0
_CONFLICT = 409

QueryUserHandler = Callable[[PendingApproval], Awaitable[str | None]]
"""Gets what an agent asks a person: a question (`PendingApproval.kind` is ``question``), or whether a tool
may run. Returns the answer, which is ``yes`` or ``no`` where something is approved, and ``retry`` or ``skip``
where nobody knows whether a call has run (``unknown_outcome``). None: it is declined, or skipped."""


class _Asked:
    """Who is asked, in this process."""

    handler: QueryUserHandler | None = None


def set_query_user_handler(handler: QueryUserHandler | None) -> None:
    """Sets who is asked what agents ask a person, in all calls of `agent` from now on. None: everything is
    declined, as nobody is there: a tool that needs approval does not run."""
    _Asked.handler = handler


async def agent(
    prompt: str, *, agent_id: str = "", client: MeshClient | None = None, within_s: float = ANSWERED_WITHIN_S
) -> AgentAnswer:
    """Says something to the agent of a mesh and returns its answer; `AgentAnswer.finish_reason` is ``stop``,
    ``error`` or ``cancelled``. ``agent_id``, of an earlier answer: the conversation goes on. What the agent
    asks a person goes to the handler (`set_query_user_handler`). While somebody has paused it, this waits."""
    async with (
        asyncio.timeout(within_s),
        _mesh(client) as mesh,
        aclosing(mesh.answers(prompt, agent_id)) as answers,
    ):
        async for answer in answers:
            if answer.is_last:
                return answer
            for asked in answer.approvals:
                await _decide(mesh, asked)
    raise AssertionError("a stream ends with the last answer")


async def get_agent_tree(
    conversation_id: str = "",
    *,
    ended: bool = False,
    client: MeshClient | None = None,
    within_s: float = SHOWN_WITHIN_S,
) -> dict[str, AgentView]:
    """Returns the agents at work by id, of all conversations or of one; ``ended``: also those of the newest
    turns that have ended."""
    async with asyncio.timeout(within_s), _mesh(client) as mesh:
        found = await mesh.agents_at_work(conversation_id, ended=ended)
        return {each.agent_id: each for each in found}


async def get_agent(
    agent_id: str, *, client: MeshClient | None = None, within_s: float = SHOWN_WITHIN_S
) -> ShownAgent:
    """Returns one agent, of any turn, with the messages between it and its model."""
    async with asyncio.timeout(within_s), _mesh(client) as mesh:
        return await mesh.agent(agent_id)


async def user_intervention(
    agent_id: str,
    action: Literal["comment", "modify", "pause", "resume", "delete"],
    text: str = "",
    *,
    changes: Mapping[str, Any] | None = None,
    now: bool = False,
    restart: bool = False,
    client: MeshClient | None = None,
    within_s: float = SHOWN_WITHIN_S,
) -> AgentView:
    """Steps in with an agent at work (docs/steer.md): ``comment`` with a text, ``modify`` with changes,
    ``pause``, ``resume`` or ``delete``, with the text as the reason. Returns how the agent stands then."""
    async with asyncio.timeout(within_s), _mesh(client) as mesh:
        return await mesh.intervene(agent_id, action, text, changes=changes, now=now, restart=restart)


async def add_agent(
    agent_id: str,
    name: str,
    task: str,
    *,
    client: MeshClient | None = None,
    within_s: float = SHOWN_WITHIN_S,
) -> AgentView:
    """Adds an agent to one at work, of those that this one may start. Returns the new agent."""
    async with asyncio.timeout(within_s), _mesh(client) as mesh:
        return await mesh.add_agent(agent_id, name, task)


@asynccontextmanager
async def _mesh(client: MeshClient | None) -> AsyncGenerator[MeshClient, None]:
    if client is not None:
        yield client
        return
    url, key = os.environ.get("MESH_URL") or DEFAULT_URL, os.environ.get("MESH_KEY", "")
    # One for each call: its connections belong to the event loop that runs now.
    async with MeshClient(url, key=key) as made:
        yield made


async def _decide(mesh: MeshClient, asked: PendingApproval) -> None:
    answer = None if _Asked.handler is None else await _Asked.handler(asked)
    choices = APPROVAL_KINDS[asked.kind].choices
    no = next(choice for choice in ("reject", "skip") if choice in choices)
    decided = Decision(asked.uuid, no)
    if answer is not None and no == "skip":
        # Nobody knows whether the call has run: it is made once more for nothing less than "retry".
        decided = Decision(asked.uuid, "retry" if answer.strip().lower() == "retry" else "skip")
    elif answer is not None:
        decided = Decision(asked.uuid, "answer", answer=answer)
    try:
        await mesh.decide(decided)
    except RequestRefused as problem:
        if problem.status != _CONFLICT:  # somebody else has decided meanwhile
            raise
