"""Generated trees, what their models and people say, and what goes wrong meanwhile."""

import itertools
import zlib
from dataclasses import dataclass
from typing import Literal, get_args

from hypothesis import strategies as st

from mesh.core.places import Place
from tests.worlds.dying_session import Death
from tests.worlds.trees import Node, config, tool

Verdict = Literal["approve", "edit", "reason", "reject"]
VERDICTS: tuple[Verdict, ...] = ("approve", "edit", "reason", "reject")
MAX_ITERATIONS = 2 * 2 * 2
"""How often a node may run in one turn, at most: in as many loops as a tree is deep."""
Call = Literal["add", "look", "exit_loop", "nothing", "complete_task", "return_to_user", "a0", "a1"]
AGENTS: tuple[Call, ...] = ("a0", "a1")
MAX_DEPTH = 3
JUDGE: Node = {"name": "judge", "type": "llm", "prompt": "judge: {output}", "tools": []}
"""The agent that validates."""


@dataclass(frozen=True)
class Script:
    """What an llm node says: an answer with tool calls for each of ``answers``, then text. ``fails``: instead
    of its text it fails. It calls ``exit_loop`` from iteration ``exits_in`` on."""

    answers: tuple[tuple[Call, ...], ...] = ()
    fails: bool = False
    exits_in: int = 1


@dataclass(frozen=True)
class Case:
    """A tree with all that is said in it, and the agents that its nodes may call. ``verdicts`` and their
    order go by the node that asks."""

    tree: Node
    scripts: dict[str, Script]
    verdicts: dict[str, Verdict]
    agents: tuple[Node, ...] = ()

    @property
    def yaml(self) -> str:
        return config(self.tree, agents=list(self.agents), budget={"max_depth": MAX_DEPTH})

    def name_at(self, place: Place) -> str:
        """The name in the scripts of the node that runs at a place."""
        node = self.tree
        for part in place.text.split(".")[1:]:
            called, is_call, _ = part.partition("@")
            if is_call:
                node = next(agent for agent in self.agents if agent["name"] == called)
            else:
                node = node["agents"][int(part.partition("#")[0])]
        name: str = node.get("prompt", "").partition(":")[0] or node["name"]
        return name


@dataclass(frozen=True)
class Trouble:
    """What happens besides: at these moments the process crashes, or the pass is lost while its nodes live
    on; ``delays``: how long (in turns of the event loop) each moment takes. ``eager``: people decide while
    the turn still runs. ``sent_at_once``: outcomes are sent ahead at once, not after a while. ``checked``:
    what adds a line has a check. ``deaths``: whether the tool server dies in these calls."""

    crashes: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    delays: tuple[int, ...] = (0,)
    eager: bool = False
    sent_at_once: bool = False
    checked: bool = False
    deaths: tuple[Death, ...] = ()


class _Growing:
    """A tree while it is drawn: names, scripts, and how many nodes may still come."""

    def __init__(self, draw: st.DrawFn, tool_nodes: bool, races: bool, validates: bool = False) -> None:
        self.draw = draw
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
        kind = self.draw(st.sampled_from(kinds if depth < 3 or len(kinds) == 1 else kinds[1:]))
        name = next(self.names)
        if kind == "llm":
            self.callers.append(name)
            # Outside of loops, because each ``add`` in the whole turn has another number.
            if self.tool_nodes and not in_loop and self.draw(st.booleans()):
                self.left -= 1
                return tool(name, "add", n=zlib.crc32(name.encode()))
        node: Node = {"name": name, "type": kind}
        if self.draw(st.booleans()):
            node["output_key"] = f"k_{name}"
        self.left -= 1
        if kind == "llm":
            return self._llm(node, in_loop, is_raced)
        return self._composite(node, depth, in_loop, is_raced)

    def agent(self, name: str) -> Node:
        """An agent that others may call: small, because it may be called often."""
        self.left, self.most_answers = 2, 1
        return self.node(1, in_loop=False) | {"name": name}

    def _llm(self, node: Node, in_loop: bool, is_raced: bool) -> Node:
        exits = in_loop and self.draw(st.booleans())
        usual: list[Call] = ["add", "add", "look", "nothing", *self.called]
        ends = self._ends(is_raced)
        calls = st.sampled_from([*usual, *ends, "exit_loop"] if exits else [*usual, *ends])
        answers = self.draw(st.lists(st.lists(calls, min_size=1, max_size=2), max_size=self.most_answers))
        fails = self.draw(st.sampled_from([False] * 9 + [True]))
        self.scripts[node["name"]] = Script(tuple(map(tuple, answers)), fails, self.draw(st.integers(1, 3)))
        keys = " ".join(f"{{k_n{i}}}" for i in range(10))
        more: Node = {"can_exit_loop": exits}
        if self.called:
            more |= {"agents": list(self.called)}
        more |= {f"can_{end}": True for end in ends}
        if self.validates and self.draw(st.booleans()):
            more |= self._checks()
        return node | {"prompt": f"{node['name']}: {{iteration}} {keys}"} | more

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
) -> Case:
    """Trees of depth 3 at most, with their scripts and decisions. A tree with tool nodes may come to another
    end after a crash: a tool node fails if a person decides not to repeat its call.

    ``calls_agents``: the nodes may call agents, which call each other. ``races``: nodes end their agent, or
    the turn, also where the end depends on which branch is first. ``validates``: answers are checked, and
    rounds of loops.
    """
    growing = _Growing(draw, tool_nodes, races, validates)
    if calls_agents:
        growing.called, growing.left = AGENTS, 4
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
        delays=st.lists(st.integers(0, 40), min_size=1, max_size=12).map(tuple),
        eager=st.booleans() if eager else st.just(False),
        sent_at_once=st.booleans(),
        checked=st.booleans(),
        deaths=st.lists(st.sampled_from(get_args(Death)), max_size=4).map(tuple) if crash else st.just(()),
    )
