"""Generated trees, what their models and people say, and what goes wrong meanwhile."""

import itertools
import zlib
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from tests.worlds.trees import Node, config, tool

Verdict = Literal["approve", "edit", "reason", "reject"]
VERDICTS: tuple[Verdict, ...] = ("approve", "edit", "reason", "reject")
MAX_ITERATIONS = 2 * 2 * 2
"""How often a node may run in one turn, at most: in as many loops as a tree is deep."""
Call = Literal["add", "look", "exit_loop", "nothing"]


@dataclass(frozen=True)
class Script:
    """What an llm node says: an answer with tool calls for each of ``answers``, then text. ``fails``: instead
    of its text it fails. It calls ``exit_loop`` from iteration ``exits_in`` on."""

    answers: tuple[tuple[Call, ...], ...] = ()
    fails: bool = False
    exits_in: int = 1


@dataclass(frozen=True)
class Case:
    """A tree with all that is said in it. ``verdicts`` and their order go by the node that asks."""

    tree: Node
    scripts: dict[str, Script]
    verdicts: dict[str, Verdict]

    @property
    def yaml(self) -> str:
        return config(self.tree)


@dataclass(frozen=True)
class Trouble:
    """What happens besides: at these moments the process crashes, or the pass is lost while its nodes live
    on; ``delays``: how long (in turns of the event loop) each moment takes. ``eager``: people decide while
    the turn still runs. ``sent_at_once``: outcomes are sent ahead at once, not after a while."""

    crashes: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    delays: tuple[int, ...] = (0,)
    eager: bool = False
    sent_at_once: bool = False


class _Growing:
    """A tree while it is drawn: names, scripts, and how many nodes may still come."""

    def __init__(self, draw: st.DrawFn, tool_nodes: bool) -> None:
        self.draw = draw
        self.tool_nodes = tool_nodes
        self.callers: list[str] = []
        self.names = (f"n{i}" for i in itertools.count())
        self.scripts: dict[str, Script] = {}
        self.left = 9

    def node(self, depth: int, *, in_loop: bool) -> Node:
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
        return self._llm(node, in_loop) if kind == "llm" else self._composite(node, depth, in_loop)

    def _llm(self, node: Node, in_loop: bool) -> Node:
        exits = in_loop and self.draw(st.booleans())
        usual: list[Call] = ["add", "add", "look", "nothing"]
        calls = st.sampled_from([*usual, "exit_loop"] if exits else usual)
        answers = self.draw(st.lists(st.lists(calls, min_size=1, max_size=2), max_size=2))
        fails = self.draw(st.sampled_from([False] * 9 + [True]))
        self.scripts[node["name"]] = Script(tuple(map(tuple, answers)), fails, self.draw(st.integers(1, 3)))
        keys = " ".join(f"{{k_n{i}}}" for i in range(10))
        return node | {"prompt": f"{node['name']}: {{iteration}} {keys}", "can_exit_loop": exits}

    def _composite(self, node: Node, depth: int, in_loop: bool) -> Node:
        kind = node["type"]
        many = self.draw(st.integers(2 if kind == "parallel" else 1, 3 if kind == "parallel" else 2))
        children = [self.node(depth - 1, in_loop=in_loop or kind == "loop") for _ in range(many)]
        if kind != "sequential":
            node["approvals"] = self.draw(st.sampled_from(["ask", "ask", "inline"]))
        if kind == "loop":
            node["max_iterations"] = self.draw(st.integers(1, 2))
        if kind == "parallel":
            node["on_error"] = self.draw(st.sampled_from(["fail", "continue"]))
        return node | {"agents": children}


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    verdicts: tuple[Verdict, ...] = ("approve", "edit", "reason", "reject"),
    tool_nodes: bool = False,
) -> Case:
    """Trees of depth 3 at most, with their scripts and decisions. A tree with tool nodes may come to another
    end after a crash: a tool node fails if a person decides not to repeat its call."""
    growing = _Growing(draw, tool_nodes)
    tree = growing.node(3, in_loop=False)
    said: dict[str, Verdict] = {
        n: draw(st.sampled_from(verdicts)) for n in draw(st.permutations(growing.callers))
    }
    return Case(tree, growing.scripts, said)


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
    )
