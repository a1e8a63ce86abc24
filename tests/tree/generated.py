"""Generated trees, what their models and people say, and what goes wrong meanwhile."""

import itertools
import zlib
from dataclasses import dataclass
from typing import Literal, get_args

from hypothesis import strategies as st

from mesh.core.places import FORK, Place
from tests.worlds.dying_session import Death
from tests.worlds.trees import Node, config, tool

Verdict = Literal["approve", "edit", "reason", "reject"]
VERDICTS: tuple[Verdict, ...] = ("approve", "edit", "reason", "reject")
MOST_ITEMS = 3
MAX_ITERATIONS = MOST_ITEMS**3
"""How often a node may run in one turn, at most: in as many loops and maps as a tree is deep."""
Plain = Literal["add", "look", "exit_loop", "nothing", "complete_task", "return_to_user", "a0", "a1"]
OfAgents = Literal["spawn", "spawn_two", "fork", "wait", "wait_for_first", "wait_for_any", "stop"]
Call = Plain | OfAgents
AGENTS: tuple[Call, ...] = ("a0", "a1")
STARTS: tuple[Call, ...] = ("spawn", "spawn_two", "fork")
WAITS: tuple[Call, ...] = ("wait", "wait_for_first")
RACING: tuple[Call, ...] = ("wait_for_any", "stop")
"""What it comes to depends on which agent is first."""
MAX_DEPTH = 3
JUDGE: Node = {"name": "judge", "type": "llm", "prompt": "judge: {output}", "tools": []}
"""The agent that validates."""


@dataclass(frozen=True)
class Script:
    """What an llm node says: an answer with tool calls for each of ``answers``, then text. ``fails``: instead
    of its text it fails. It calls ``exit_loop`` from iteration ``exits_in`` on. ``items``: its text is a list
    of so many."""

    answers: tuple[tuple[Call, ...], ...] = ()
    fails: bool = False
    exits_in: int = 1
    items: int | None = None


@dataclass(frozen=True)
class Case:
    """A tree with all that is said in it, and the agents that its nodes may call. ``verdicts`` and their
    order go by the node that asks."""

    tree: Node
    scripts: dict[str, Script]
    verdicts: dict[str, Verdict]
    agents: tuple[Node, ...] = ()

    def yaml(self, agents_at_once: int) -> str:
        """The config, in which so many started agents work at the same time."""
        budget, limits = {"max_depth": MAX_DEPTH}, {"agents_at_once": agents_at_once}
        return config(self.tree, agents=list(self.agents), budget=budget, limits=limits)

    def name_at(self, place: Place) -> str:
        """The name in the scripts of the node that runs at a place."""
        node = self.tree
        for part in place.text.split(".")[1:]:
            called, is_call, _ = part.partition("@")
            if called == FORK:
                continue  # it is the node itself once more
            if is_call:
                node = next(agent for agent in self.agents if agent["name"] == called)
            else:
                node = node["agents"][int(part.partition("#")[0])]
        name: str = node.get("prompt", "").partition(":")[0] or node["name"]
        return name


@dataclass(frozen=True)
class Trouble:
    """What happens besides: at these moments the process crashes, or the pass is lost while its nodes live
    on, or so is one node below the root; ``delays``: how long (in turns of the event loop) each moment takes.
    ``eager``: people decide while the turn still runs. ``sent_at_once``: outcomes are sent ahead at once, not
    after a while. ``checked``: what adds a line has a check. ``deaths``: whether the tool server dies in
    these calls. ``agents_at_once``: how many started agents work at the same time."""

    crashes: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    node_losses: tuple[int, ...] = ()
    delays: tuple[int, ...] = (0,)
    eager: bool = False
    sent_at_once: bool = False
    checked: bool = False
    deaths: tuple[Death, ...] = ()
    agents_at_once: int = 32


class _Growing:
    """A tree while it is drawn: names, scripts, and how many nodes may still come."""

    def __init__(
        self,
        draw: st.DrawFn,
        tool_nodes: bool,
        races: bool,
        validates: bool = False,
        spawns: bool = False,
        maps: bool = False,
    ) -> None:
        self.draw = draw
        self.maps = maps
        self.in_map = False
        self.spawns = spawns
        self.validates = validates
        self.races = races
        self.called: tuple[Call, ...] = ()
        self.most_answers = 2
        self.tool_nodes = tool_nodes
        self.callers: list[str] = []
        self.names = (f"n{i}" for i in itertools.count())
        self.scripts: dict[str, Script] = {}
        self.left = 9

    def node(self, depth: int, *, in_loop: bool, is_raced: bool = False) -> Node:
        kinds = ["llm", "sequential", "parallel", "loop"] if depth and self.left > 1 else ["llm"]
        kinds += ["map", "map"] if self.maps and depth and self.left > 2 else []
        kind = self.draw(st.sampled_from(kinds if depth < 3 or len(kinds) == 1 else kinds[1:]))
        if kind == "map":
            return self._map(depth, in_loop)
        name = next(self.names)
        if kind == "llm":
            self.callers.append(name)
            # Outside of loops and maps, because each ``add`` in the whole turn has another number.
            if self.tool_nodes and not in_loop and not self.in_map and self.draw(st.booleans()):
                self.left -= 1
                return tool(name, "add", n=zlib.crc32(name.encode()))
        node: Node = {"name": name, "type": kind}
        if self.draw(st.booleans()):
            node["output_key"] = f"k_{name}"
        self.left -= 1
        if kind == "llm":
            return self._llm(node, in_loop, is_raced)
        return self._composite(node, depth, in_loop, is_raced)

    def _map(self, depth: int, in_loop: bool) -> Node:
        """A node that writes a list, and a map over it. Its items may read the whole list, too."""
        name, lister = next(self.names), next(self.names)
        self.left -= 2
        self.scripts[lister] = Script(items=self.draw(st.sampled_from([2, MOST_ITEMS, 1, 0])))
        key = self.draw(st.sampled_from(["k", "unread"])) + f"_{lister}"
        is_around, self.in_map = self.in_map, True
        child = self.node(depth - 1, in_loop=in_loop, is_raced=True)
        self.in_map = is_around
        each: Node = {
            "name": name,
            "type": "map",
            "over": key,
            "approvals": self.draw(st.sampled_from(["ask", "ask", "inline"])),
            "on_error": self.draw(st.sampled_from(["fail", "continue"])),
            "agents": [child],
        }
        if self.draw(st.booleans()):
            each["output_key"] = f"k_{name}"
        writer = {"name": lister, "type": "llm", "prompt": f"{lister}: ", "tools": [], "output_key": key}
        return {"name": f"{name}_and_list", "type": "sequential", "agents": [writer, each]}

    def agent(self, name: str) -> Node:
        """An agent that others may call: small, because it may be called often."""
        self.left, self.most_answers, self.maps = 2, 1, False
        asks = {"destructiveHint": True} if self.spawns and self.draw(st.integers(0, 4)) == 4 else {}
        return self.node(1, in_loop=False) | {"name": name} | asks

    def _llm(self, node: Node, in_loop: bool, is_raced: bool) -> Node:
        spawn = self._spawn() if self.spawns else None
        # What ends a node ends its agents wherever they are, which depends on who is first.
        is_whole = spawn is not None and not self.races
        exits = in_loop and not is_whole and self.draw(st.booleans())
        usual: list[Call] = ["add", "add", "look", "nothing", *self.called]
        if spawn is not None:
            racing = RACING if self.races else ()
            usual = ["add", "look", *self.called, *STARTS, *STARTS, *WAITS, *racing]
        ends = [] if is_whole else self._ends(is_raced)
        calls = st.sampled_from([*usual, *ends, "exit_loop"] if exits else [*usual, *ends])
        fewest = 0 if spawn is None else 1
        each = st.lists(calls, min_size=1, max_size=2)
        answers = self.draw(st.lists(each, min_size=fewest, max_size=self.most_answers))
        fails = not is_whole and self.draw(st.sampled_from([False] * 9 + [True]))
        self.scripts[node["name"]] = Script(tuple(map(tuple, answers)), fails, self.draw(st.integers(1, 3)))
        keys = " ".join(f"{{k_n{i}}}" for i in range(10))
        more: Node = {"can_exit_loop": exits}
        if self.called:
            more |= {"agents": list(self.called)}
        if spawn is not None:
            more |= {"spawn": spawn}
        more |= {f"can_{end}": True for end in ends}
        if self.validates and self.draw(st.booleans()):
            more |= self._checks()
        item = "{index} {item}" if self.in_map else ""
        return node | {"prompt": f"{node['name']}: {{iteration}} {keys}{item}"} | more

    def _spawn(self) -> Node | None:
        """What a node may start, and who agrees to it."""
        if not self.draw(st.sampled_from([True, True, False])):
            return None
        unwaited = st.sampled_from(["report", "delete"]) if self.races else st.just("report")
        review = st.sampled_from(["none", "none", "none", "ask"])
        return {"fork": True, "review": self.draw(review), "unwaited": self.draw(unwaited)}

    def _checks(self) -> Node:
        """What checks the answers of a node: a function and an agent that go by the text alone, a person."""
        validators = st.sampled_from([{"check": "is_fine"}, {"person": True}, {"agent": JUDGE["name"]}])
        return {
            "validate": self.draw(st.lists(validators, min_size=1, max_size=2)),
            "max_runs": self.draw(st.integers(1, 3)),
            "on_invalid": self.draw(st.sampled_from(["fail", "accept", "ask"])),
        }

    def _ends(self, is_raced: bool) -> list[Call]:
        """The tools that end something, where the end does not depend on who is first; or everywhere."""
        if not self.called or not self.draw(st.booleans()):
            return []
        if self.races:
            return ["complete_task", "return_to_user"]
        return [] if is_raced else ["complete_task"]

    def _composite(self, node: Node, depth: int, in_loop: bool, is_raced: bool) -> Node:
        kind = node["type"]
        many = self.draw(st.integers(2 if kind == "parallel" else 1, 3 if kind == "parallel" else 2))
        in_loop, is_raced = in_loop or kind == "loop", is_raced or kind == "parallel"
        children = [self.node(depth - 1, in_loop=in_loop, is_raced=is_raced) for _ in range(many)]
        if kind != "sequential":
            node["approvals"] = self.draw(st.sampled_from(["ask", "ask", "inline"]))
        if kind == "loop":
            node["max_iterations"] = self.draw(st.integers(1, 2))
            if self.validates and self.draw(st.booleans()):
                conditions = [{"check": "is_fine"}, {"agent": JUDGE["name"]}]
                node["exit_when"] = self.draw(st.sampled_from(conditions))
        if kind == "parallel":
            node["on_error"] = self.draw(st.sampled_from(["fail", "continue"]))
        return node | {"agents": children}


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    verdicts: tuple[Verdict, ...] = ("approve", "edit", "reason", "reject"),
    tool_nodes: bool = False,
    calls_agents: bool = False,
    races: bool = False,
    validates: bool = False,
    spawns: bool = False,
    maps: bool = False,
) -> Case:
    """Trees of depth 3 at most, with their scripts and decisions. A tree with tool nodes may come to another
    end after a crash: a tool node fails if a person decides not to repeat its call.

    ``calls_agents``: the nodes may call agents, which call each other. ``races``: nodes end their agent, or
    the turn, also where the end depends on which branch is first. ``validates``: answers are checked, and
    rounds of loops. ``spawns``: the nodes start the agents as well, to work beside them, and fork; with
    ``races`` they also end agents, or go on when the first one has ended. ``maps``: there are maps, too.
    """
    growing = _Growing(draw, tool_nodes, races, validates, spawns, maps)
    if calls_agents or spawns:
        growing.called, growing.left = AGENTS, 2 if spawns else 4
    tree = growing.node(3, in_loop=False)
    agents = tuple(growing.agent(name) for name in growing.called) + ((JUDGE,) if validates else ())
    said: dict[str, Verdict] = {
        n: draw(st.sampled_from(verdicts)) for n in draw(st.permutations(growing.callers))
    }
    return Case(tree, growing.scripts, said, agents)


def troubles(*, crash: bool = True, eager: bool = True) -> st.SearchStrategy[Trouble]:
    """Any trouble; or without crashes and lost passes; or with people who wait until nothing goes on."""
    moments = st.lists(st.integers(1, 40), max_size=3, unique=True).map(tuple) if crash else st.just(())
    return st.builds(
        Trouble,
        crashes=moments,
        losses=moments,
        node_losses=moments,
        delays=st.lists(st.integers(0, 40), min_size=1, max_size=12).map(tuple),
        eager=st.booleans() if eager else st.just(False),
        sent_at_once=st.booleans(),
        checked=st.booleans(),
        deaths=st.lists(st.sampled_from(get_args(Death)), max_size=4).map(tuple) if crash else st.just(()),
        agents_at_once=st.sampled_from([32, 3, 1]),
    )
