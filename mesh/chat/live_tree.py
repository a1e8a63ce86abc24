"""The agents at work on the whole screen, live, with keys to step in."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput

from mesh.client.responses import AgentsSnapshot
from mesh.client.rest import MeshClient
from mesh.client.seen_agents import SeenAgents
from mesh.core.agents_of_turn import AgentView
from mesh.core.errors import MeshError
from mesh.core.events import NewsAction
from mesh.display.agent_outline import AgentOutline, OutlineRow, row_text
from mesh.display.agent_trees import name_of, style_of
from mesh.display.text import one_line

_KEYS = "↑↓ move  ←→ space fold  c comment  m change task  p pause, resume  d delete  w who waits  q back"
_LEAST_REDRAW_S = 0.1
_TICK_S = 1.0
_ESCAPE_S = 0.05
"""How long it takes until Esc is no beginning of another key."""
_LINES_BESIDE_ROWS = 2
_MOST_NAME = 40
_MOST_NAMED = 3
_MOST_SAID = 300

Do = Callable[[str], Awaitable[object]]


class LiveTree:
    """Shows the agents of one conversation, or of all with an empty id; ``keeps_ended``: also those that have
    ended, of the newest turn and of what was seen. It has the terminal of this process to itself."""

    def __init__(self, client: MeshClient, conversation_id: str, *, keeps_ended: bool) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._keeps_ended = keeps_ended
        self._seen = SeenAgents(keeps_ended=keeps_ended)
        self._outline = AgentOutline()
        self._is_stale = False
        self._said = ""  # what went wrong with the last key, or what came of it
        self._line = Buffer(multiline=False, accept_handler=self._accept)
        self._question = ""
        self._then: Do | None = None  # what is done with the line that is asked for
        self._may_be_empty = False
        self._at_work: set[asyncio.Task[None]] = set()
        self._app = self._application()

    async def run(self) -> None:
        """Returns when the person goes back. Raises `MeshError` if the agents cannot be asked for."""
        following = asyncio.create_task(self._follow())
        showing = asyncio.create_task(self._app.run_async(handle_sigint=False))
        try:
            await asyncio.wait({following, showing}, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and not showing.done():
                following.result()
            await asyncio.gather(*self._at_work)
        finally:
            for task in (following, showing):
                task.cancel()
            await asyncio.gather(following, showing, return_exceptions=True)

    async def _follow(self) -> None:
        if self._keeps_ended:
            known = await self._client.agents_at_work(self._conversation_id, ended=True)
            self._take(AgentsSnapshot({agent.agent_id: agent for agent in known}))
        async with aclosing(self._client.follow_agents(self._conversation_id)) as changes:
            async for change in changes:
                self._take(change)

    def _take(self, change: AgentsSnapshot | AgentView) -> None:
        self._seen.take(change)
        self._is_stale = True  # many changes are drawn at once
        self._app.invalidate()

    def _application(self) -> Application[None]:
        is_asked = Condition(lambda: self._then is not None)
        rows = Window(FormattedTextControl(self._rows, focusable=True, show_cursor=False))
        line = Window(
            BufferControl(self._line, input_processors=[BeforeInput(lambda: self._question)]),
            wrap_lines=True,
            dont_extend_height=True,
        )
        foot = Window(FormattedTextControl(self._foot), height=1)
        self._rows_window, self._line_window = rows, line
        app: Application[None] = Application(
            Layout(
                HSplit(
                    [
                        Window(FormattedTextControl(self._head), height=1),
                        rows,
                        ConditionalContainer(line, is_asked),
                        ConditionalContainer(foot, ~is_asked),
                    ]
                ),
                rows,
            ),
            key_bindings=self._bindings(is_asked),
            full_screen=True,
            min_redraw_interval=_LEAST_REDRAW_S,
            refresh_interval=_TICK_S,
        )
        app.ttimeoutlen = _ESCAPE_S
        return app

    def _bindings(self, is_asked: Condition) -> KeyBindings:
        bound, outline = KeyBindings(), self._outline
        page = self._height
        for keys, move in {
            ("up", "k"): lambda: outline.move(-1),
            ("down", "j"): lambda: outline.move(1),
            ("pageup",): lambda: outline.move(-page()),
            ("pagedown",): lambda: outline.move(page()),
            ("home",): lambda: outline.move(-len(self._seen.agents)),
            ("end",): lambda: outline.move(len(self._seen.agents)),
            ("left",): outline.fold,
            ("right",): outline.unfold,
            (" ",): outline.toggle,
            ("w",): self._find_waiting,
            ("c",): self._comment,
            ("m",): self._change,
            ("p",): self._pause,
            ("d",): self._delete,
            ("q", "escape", "c-c", "c-d"): self._leave,
        }.items():
            for key in keys:
                bound.add(key, filter=~is_asked, eager=key == "escape")(_pressed(move))
        for key in ("escape", "c-c"):
            bound.add(key, filter=is_asked, eager=True)(_pressed(self._give_up))
        return bound

    def _leave(self) -> None:
        self._app.exit()

    def _height(self) -> int:
        return max(1, self._app.output.get_size().rows - _LINES_BESIDE_ROWS)

    def _head(self) -> StyleAndTextTuples:
        agents = self._seen.agents.values()
        at_work = sum(not agent.has_ended for agent in agents)
        waiting = sum(agent.status == "awaiting_user" for agent in agents)
        waits = f", {waiting:,} {'waits' if waiting == 1 else 'wait'} for a person" if waiting else ""
        return [("bold", f"{at_work:,} {'agent' if at_work == 1 else 'agents'} at work{waits}")]

    def _rows(self) -> StyleAndTextTuples:
        width, now = self._app.output.get_size().columns, datetime.now(UTC)
        if self._is_stale:
            self._outline.show(dict(self._seen.agents))
            self._is_stale = False
        shown: StyleAndTextTuples = []
        for row, is_selected in self._outline.page(self._height()):
            shown += _styled(row, width, now, "reverse" if is_selected else "")
        return shown

    def _foot(self) -> StyleAndTextTuples:
        return [("ansired", self._said)] if self._said else [("", _KEYS)]

    def _find_waiting(self) -> None:
        if not self._outline.select_waiting():
            self._said = "nobody waits for a person"

    def _comment(self) -> None:
        if agent := self._chosen():
            self._ask(f"tell {_named(agent)}: ", self._doing(agent, "comment"))

    def _change(self) -> None:
        agent = self._chosen()
        if agent is None:
            return
        client, id = self._client, agent.agent_id
        self._ask(
            f"new task of {_named(agent)}: ",
            lambda task: client.intervene(id, "modify", changes={"task": task}),
        )

    def _pause(self) -> None:
        if agent := self._chosen():
            self._begin(self._doing(agent, "resume" if agent.detail == "paused" else "pause"), "")

    def _delete(self) -> None:
        if agent := self._chosen():
            what = f"delete {_named(agent)}{_and_below([*self._outline.below(agent)])}"
            asked = f"{what}? Enter, or a reason first; Esc: no: "
            self._ask(asked, self._doing(agent, "delete"), may_be_empty=True)

    def _doing(self, agent: AgentView, action: NewsAction) -> Do:
        return lambda text: self._client.intervene(agent.agent_id, action, text)

    def _chosen(self) -> AgentView | None:
        self._said = ""
        return self._outline.selected

    def _ask(self, question: str, then: Do, *, may_be_empty: bool = False) -> None:
        self._question, self._then, self._may_be_empty = question, then, may_be_empty
        self._line.reset()
        self._app.layout.focus(self._line_window)

    def _give_up(self) -> None:
        self._then = None
        self._app.layout.focus(self._rows_window)

    def _accept(self, line: Buffer) -> bool:
        then, text = self._then, line.text.strip()
        self._give_up()
        if then is not None and (text or self._may_be_empty):
            self._begin(then, text)
        return False

    def _begin(self, do: Do, text: str) -> None:
        task = asyncio.create_task(self._done(do, text))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    async def _done(self, do: Do, text: str) -> None:
        try:
            await do(text)
        except MeshError as problem:
            self._said = f"✗ {one_line(str(problem), _MOST_SAID)}"
            self._app.invalidate()


def _pressed(do: Callable[[], object]) -> Callable[[KeyPressEvent], None]:
    def handle(_: KeyPressEvent) -> None:
        do()

    return handle


def _styled(row: OutlineRow, width: int, now: datetime, style: str) -> StyleAndTextTuples:
    name, status, rest = row_text(row, width, now)
    colour = f"ansi{style_of(row.agent)}" if style_of(row.agent) != "dim" else ""
    return [(style, name), (f"{style} {colour}", status), (style, f"{rest}\n")]


def _named(agent: AgentView) -> str:
    return one_line(name_of(agent), _MOST_NAME)


def _and_below(below: list[AgentView]) -> str:
    """What goes with an agent that is deleted."""
    if not below:
        return ""
    names = ", ".join(_named(agent) for agent in below[:_MOST_NAMED])
    more = ", …" if len(below) > _MOST_NAMED else ""
    return f" and the {len(below):,} at work below it ({names}{more})"
