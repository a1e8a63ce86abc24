"""The agents of turns as a tree, for a terminal."""

import re
from collections.abc import Iterable

from rich.text import Text
from rich.tree import Tree

from mesh.core.agents_of_turn import AgentView
from mesh.core.places import Place
from mesh.display.text import one_line

_MOST_TASK = 60
_NUMBERS = re.compile(r"\d+")
_STYLES = {"awaiting_user": "yellow", "error": "red", "deleted": "red", "completed": "dim"}
_WORDS = {"awaiting_user": "asks a person"}


def as_trees(agents: Iterable[AgentView]) -> list[Tree]:
    """A tree for each conversation, in the order of their beginnings; each agent below the one that called or
    started it. Those that began at the same time are in the order of their places."""
    trees: list[Tree] = []
    nodes: dict[str, Tree] = {}
    for agent in sorted(agents, key=by_beginning):
        above = nodes.get(agent.parent_id or "")
        nodes[agent.agent_id] = above.add(as_line(agent)) if above else Tree(as_line(agent))
        if above is None:  # a root agent, or one whose parent has ended
            trees.append(nodes[agent.agent_id])
    return trees


def by_beginning(agent: AgentView) -> tuple[str, list[int]]:
    """Orders agents by since when they are there, and then by place."""
    return agent.created_at, [int(number) for number in _NUMBERS.findall(agent.place)]


def as_line(agent: AgentView) -> Text:
    """An agent on one line: its name, how it stands, what it does, what it was told, its cost, and its id."""
    about = one_line(agent.title or agent.user_content, _MOST_TASK)
    line = Text(f"{one_line(name_of(agent), _MOST_TASK)}  ")
    line.append(status_of(agent), style_of(agent))
    if agent.activity and not agent.detail:
        line.append(f", {one_line(agent.activity, _MOST_TASK)}", "dim")
    line.append(f"  {about}  " if about else "  ")
    if agent.subtree_cost_usd:
        line.append(f"${agent.subtree_cost_usd:.4f}  ", "dim")
    line.append(agent.agent_id, "dim")
    return line


def name_of(agent: AgentView) -> str:
    """The name of an agent, with the number of an item of a map, or of an iteration of a loop."""
    number = Place(agent.place).number
    return f"{agent.name} #{number}" if number else agent.name


def status_of(agent: AgentView) -> str:
    """How an agent stands, in words."""
    return agent.detail or _WORDS.get(agent.status, agent.status)


def style_of(agent: AgentView) -> str:
    """The style in which it is shown how an agent stands."""
    return "yellow" if agent.detail else _STYLES.get(agent.status, "green")
