"""The agents of turns as an outline in which a person moves: parts of it folded, one agent selected. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import msgspec
from rich.cells import cell_len, set_cell_size

from mesh.core.agents_of_turn import AgentView
from mesh.display.agent_trees import by_beginning, name_of, status_of
from mesh.display.text import one_line

_WIDEST_NAME = 28
_WIDEST_ABOUT = 32
_MOST_LINE = 200


class OutlineRow(msgspec.Struct, frozen=True):
    """A row: an agent, how deep it is, and whether there are agents below it, which may be folded away."""

    agent: AgentView
    depth: int
    has_below: bool
    is_folded: bool


class AgentOutline:
    """Rows of agents, each below the one that called or started it. What is folded has no rows."""

    def __init__(self) -> None:
        self._agents: Mapping[str, AgentView] = {}
        self._below: dict[str, list[AgentView]] = {}
        self._rows: list[OutlineRow] = []
        self._folded: set[str] = set()
        self._selected = ""
        self._index = 0
        self._top = 0

    def show(self, agents: Mapping[str, AgentView]) -> None:
        """Shows these agents. The same one stays selected as long as it is among them."""
        self._agents = agents
        below: defaultdict[str, list[AgentView]] = defaultdict(list)
        for agent in sorted(agents.values(), key=by_beginning):
            below[parent if (parent := agent.parent_id) and parent in agents else ""].append(agent)
        self._below = dict(below)
        self._folded &= agents.keys()
        self._arrange()

    @property
    def selected(self) -> AgentView | None:
        return self._agents.get(self._selected)

    def below(self, agent: AgentView) -> Iterator[AgentView]:
        """The agents below this one that have not ended."""
        for each in self._below.get(agent.agent_id, ()):
            if not each.has_ended:
                yield each
            yield from self.below(each)

    def move(self, by: int) -> None:
        """Selects the row that is so many rows below, or the last one in this direction."""
        self._select(self._index + by)

    def fold(self) -> None:
        """Folds what is below the selected agent; if that is done, or nothing is there, selects the one
        above."""
        agent = self.selected
        if agent is None:
            return
        if agent.agent_id in self._below and agent.agent_id not in self._folded:
            self._folded.add(agent.agent_id)
        else:
            self._selected = next(self._above(agent.agent_id), self._selected)
        self._arrange()

    def unfold(self) -> None:
        """Shows what is below the selected agent."""
        self._folded.discard(self._selected)
        self._arrange()

    def toggle(self) -> None:
        """Folds or unfolds the selected agent."""
        if self._selected in self._folded:
            self.unfold()
        elif self._selected in self._below:
            self.fold()

    def select_waiting(self) -> bool:
        """Selects the next agent that waits for a person, and unfolds what is above it. Returns False if
        there is none."""
        order = [agent.agent_id for agent, _ in self._walk("", 0, frozenset())]
        begin = order.index(self._selected) + 1 if self._selected in order else 0
        for id in [*order[begin:], *order[:begin]]:
            if self._agents[id].status == "awaiting_user":
                self._selected = id
                self._folded -= set(self._above(id))
                self._arrange()
                return True
        return False

    def page(self, height: int) -> list[tuple[OutlineRow, bool]]:
        """Returns the rows that fit in so many lines, each with whether it is selected, which one is."""
        least, most = self._index - height + 1, max(0, len(self._rows) - height)
        self._top = min(max(self._top, least, 0), self._index, most)
        shown = self._rows[self._top : self._top + height]
        return [(row, row.agent.agent_id == self._selected) for row in shown]

    def _above(self, id: str) -> Iterator[str]:
        parent = self._agents[id].parent_id
        if parent and parent in self._agents:
            yield parent
            yield from self._above(parent)

    def _select(self, index: int) -> None:
        if self._rows:
            self._index = min(max(index, 0), len(self._rows) - 1)
            self._selected = self._rows[self._index].agent.agent_id

    def _arrange(self) -> None:
        self._rows = [
            OutlineRow(agent, depth, agent.agent_id in self._below, agent.agent_id in self._folded)
            for agent, depth in self._walk("", 0, self._folded)
        ]
        found = (n for n, row in enumerate(self._rows) if row.agent.agent_id == self._selected)
        self._select(next(found, self._index))

    def _walk(self, parent: str, depth: int, folded: Iterable[str]) -> Iterator[tuple[AgentView, int]]:
        for agent in self._below.get(parent, ()):
            yield agent, depth
            if agent.agent_id not in folded:
                yield from self._walk(agent.agent_id, depth + 1, folded)


def row_text(row: OutlineRow, width: int, now: datetime) -> tuple[str, str, str]:
    """Returns a row in three parts: what it is, how it stands, and the rest; in all at most so many columns
    wide."""
    agent = row.agent
    mark = ("▸" if row.is_folded else "▾") if row.has_below else " "
    name = f"{'  ' * row.depth}{mark} {one_line(name_of(agent), _WIDEST_NAME)}  "
    status = f"{status_of(agent)}  "
    about = one_line(agent.title or agent.user_content, _WIDEST_ABOUT)
    cost = f"${agent.subtree_cost_usd:.4f}" if agent.subtree_cost_usd else ""
    rest = "  ".join(filter(None, (about, took(agent, now), cost, _current_line(agent))))
    return _cut((name, status, rest), width)


def took(agent: AgentView, now: datetime) -> str:
    """How long an agent has worked, until its end or until now, as ``1:05`` or ``2:01:05``; empty if it has
    not begun."""
    if agent.started_at is None:
        return ""
    end = datetime.fromisoformat(agent.ended_at) if agent.ended_at else now
    took_s = (end - datetime.fromisoformat(agent.started_at)).total_seconds()
    minutes, seconds = divmod(max(0, int(took_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _current_line(agent: AgentView) -> str:
    if agent.has_ended:
        return one_line(agent.result or "", _MOST_LINE)
    last = agent.saying.strip().rpartition("\n")[2]
    return one_line(
        f"{agent.activity}: {last}" if agent.activity and last else agent.activity or last, _MOST_LINE
    )


def _cut(parts: tuple[str, str, str], width: int) -> tuple[str, str, str]:
    cut: list[str] = []
    for part in parts:
        left = width - sum(map(cell_len, cut))
        cut.append(part if cell_len(part) <= left else set_cell_size(part, max(0, left)))
    return cut[0], cut[1], cut[2]
