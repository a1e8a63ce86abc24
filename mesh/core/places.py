"""Places in the tree and keys of steps: parsed and written here, and nowhere else.

    place       0              the root
                0.2            its third child
                0.2#3.1        the second child of that one, which is a loop's child in iteration 3
                0.1.search@3-0   the agent search, called by the node 0.1 in its step 0.1/tool/3.0
                0.1.critic@v3-1  the agent critic, in the step 0.1/validation/3.1
                0.1.search@3-0-1 the second agent that the step 0.1/tool/3.0 started, which is a search
                0.1.self@3-0-1   the same, but a fork: it is the node 0.1 once more
                0.1.search@u41   an agent that a person has added to the node 0.1, by about event 41
                0.1.search@3-0~2 the agent at 0.1.search@3-0, once it has begun anew
                0.2.0#7          the seventh item of a map
    node path   0.2.1          the node that is there, whatever the iteration: it names the node's actor
                search.2       the third child of the agent search, wherever it was called
                0.1            also of a fork of this node, at 0.1.self@3-0-1
    step key    0.2/llm/1      the second model call of the node
                0.2/tool/1.0   the first tool call of the answer to it
                0.2/tool/0.0   or the call of a tool node, which has no model
                0.2/a2a/0      what an a2a node says to its agent
                0.2/validation/1.0   its first validator, about the answer of 0.2/llm/1
                0.3/validation/2.0   the exit condition of a loop, after its second iteration
                0.2/limit/max_cost_usd   a limit of the run at this place
                0.2            the node itself, as a step of its parent

Events and calls carry both as text, because text is what a journal, a log and a client read.
"""

import re
from collections.abc import Iterator

import msgspec

_INDEX = re.compile(r"\.(\d+)(?=[.#]|$)")
_ITERATION = re.compile(r"#(\d+)")
_CALLED = re.compile(r"(?:^|\.)([^.@]+)@(?:(v?)(\d+)-(\d+)(?:-(\d+))?|u\d+)(?:~\d+)?")

FORK = "self"
"""Stands for the name of the agent in the place of a fork. No agent of a config has this name."""
_FORK_PART = f"{FORK}@"


class Place(msgspec.Struct, frozen=True):
    """Where in the tree a node runs. ``text`` is its written form; it is not checked."""

    text: str

    @property
    def path(self) -> str:
        """The node path: the place without iterations, from the root of the agent that it belongs to.

        A fork is the node that it was forked from.

        >>> Place("0.2#3.1").path, Place("0.1.search@3-0.2#1").path, Place("0.1.self@3-0-1").path
        ('0.2.1', 'search.2', '0.1')
        """
        text = self.text
        if _FORK_PART in text:
            text = ".".join(part for part in text.split(".") if not part.startswith(_FORK_PART))
        if "@" in text:
            above, _, below = text.rpartition("@")
            text = f"{above.rpartition('.')[2]}{''.join(below.partition('.')[1:])}"
        if "#" not in text:
            return text
        return ".".join(part.partition("#")[0] for part in text.split("."))

    @property
    def indices(self) -> list[int]:
        """The child indices from the root, which has none.

        >>> Place("0.2#3.1").indices
        [2, 1]
        """
        return [int(index) for index in _INDEX.findall(self.text)]

    @property
    def iterations(self) -> list[str]:
        """The iterations of the loops around the node, the outermost first.

        >>> Place("0.2#3.1").iterations
        ['3']
        """
        return _ITERATION.findall(self.text)

    @property
    def number(self) -> str:
        """The number of the item of a map, or of the iteration of a loop, whose place this is; empty if it is
        neither.

        >>> Place("0.2#3").number, Place("0.2#3.1").number
        ('3', '')
        """
        return self.text.rpartition(".")[2].partition("#")[2]

    @property
    def enclosing(self) -> Iterator["Place"]:
        """The places of the nodes around it, the nearest first.

        >>> [place.text for place in Place("0.2#3.1").enclosing]
        ['0.2#3', '0']
        """
        text = self.text
        while "." in text:
            text = text.rpartition(".")[0]
            yield Place(text)

    @property
    def called_agents(self) -> list[str]:
        """The names of the called and started agents that it lies in, the outermost first.

        >>> Place("0.1.search@3-0.2.web@0-1-4").called_agents
        ['search', 'web']
        """
        return [name for name, *_ in _CALLED.findall(self.text)] if "@" in self.text else []

    @property
    def depth(self) -> int:
        """How many agents call or start each other down to this place: 1 in the root agent."""
        return 1 + self.text.count("@")

    @property
    def agent(self) -> "Place":
        """The place of the agent that it lies in: the root, or that of a called or started agent.

        >>> Place("0.1.search@3-0.2#1").agent.text
        '0.1.search@3-0'
        """
        if "@" not in self.text:
            return ROOT
        above, _, below = self.text.rpartition("@")
        return Place(f"{above}@{below.partition('.')[0]}")

    @property
    def in_tree(self) -> "Place":
        """The place in the tree of the root agent: of a called or started agent, that of the node whose call
        led to it.

        >>> Place("0.1.search@3-0.2").in_tree.text
        '0.1'
        """
        called = _CALLED.search(self.text)
        return Place(self.text[: called.start()]) if called else self

    @property
    def call(self) -> "StepKey | None":
        """The step that called the agent whose place this is; None if it is not the place of a called agent.

        >>> Place("0.1.search@3-0").call.text, Place("0.1.critic@v3-1").call.text
        ('0.1/tool/3.0', '0.1/validation/3.1')
        """
        found = self._beginning_of_agent
        if found is None or found[5] or not found[3]:
            return None
        return StepKey(f"{self._above}/{'validation' if found[2] else 'tool'}/{found[3]}.{found[4]}")

    @property
    def started_in(self) -> "StepKey | None":
        """The tool call that started the agent whose place this is; None if it is not the place of a started
        agent.

        >>> Place("0.1.search@3-0-1").started_in.text, Place("0.1.search@3-0").started_in
        ('0.1/tool/3.0', None)
        """
        found = self._beginning_of_agent
        if found is None or not found[5]:
            return None
        return StepKey(f"{self._above}/tool/{found[3]}.{found[4]}")

    @property
    def begun_in(self) -> "StepKey | None":
        """The step that called or started the agent whose place this is: see `call` and `started_in`."""
        return self.call or self.started_in

    @property
    def is_added(self) -> bool:
        """Whether this is the place of an agent that a person has added.

        >>> Place("0.1.search@u41").is_added, Place("0.1.search@3-0-1").is_added
        (True, False)
        """
        found = self._beginning_of_agent
        return found is not None and not found[3]

    @property
    def is_started(self) -> bool:
        """Whether this is the place of a started agent, be it a fork or one that a person has added."""
        return self.is_added or self.started_in is not None

    @property
    def is_fork(self) -> bool:
        """Whether this is the place of a fork.

        >>> Place("0.1.self@3-0-1").is_fork, Place("0.1.self@3-0-1.web@0-0").is_fork
        (True, False)
        """
        return self.text.rpartition(".")[2].startswith(_FORK_PART)

    @property
    def _above(self) -> str:
        return self.text.rpartition(".")[0]

    @property
    def _beginning_of_agent(self) -> "re.Match[str] | None":
        last = self.text.rpartition(".")[2]
        return _CALLED.fullmatch(last) if "@" in last else None

    @property
    def first(self) -> "Place":
        """The place at which the agent began that has begun anew here; of any other, the place itself.

        >>> Place("0.1.search@3-0~2").first.text, Place("0.2.0#7").first.text
        ('0.1.search@3-0', '0.2.0#7')
        """
        first, mark, number = self.text.rpartition("~")
        return Place(first) if mark and number.isdecimal() else self

    @property
    def anew(self) -> "Place":
        """The place of the agent once it has begun anew.

        >>> Place("0.1.search@3-0").anew.text, Place("0.1.search@3-0~2").anew.text
        ('0.1.search@3-0~2', '0.1.search@3-0~3')
        """
        first = self.first
        number = 1 if first == self else int(self.text.rpartition("~")[2])
        return Place(f"{first.text}~{number + 1}")

    def below(self, outer: "Place") -> str:
        """How it is written as seen from a place around it, which names it there.

        >>> Place("0.1.search@3-0-1.2").below(Place("0.1"))
        'search@3-0-1.2'
        """
        return self.text.removeprefix(f"{outer.text}.")

    def added_agent(self, name: str, number: int) -> "Place":
        """The place of an agent that a person adds to this node.

        >>> Place("0.1").added_agent("search", 41).text
        '0.1.search@u41'
        """
        return Place(f"{self.text}.{name}@u{number}")

    def child(self, index: int, iteration: int = 0) -> "Place":
        """The place of a child, in an iteration if this is a loop.

        >>> Place("0").child(2, 3).text
        '0.2#3'
        """
        return Place(f"{self.text}.{index}#{iteration}" if iteration else f"{self.text}.{index}")

    def contains(self, other: "Place") -> bool:
        """Whether the other place is this one or lies below it.

        >>> Place("0.2").contains(Place("0.2.1")), Place("0.2").contains(Place("0.21"))
        (True, False)
        """
        return other.text == self.text or other.text.startswith(f"{self.text}.")

    @property
    def scopes(self) -> Iterator["Place"]:
        """This place and those around it, the nearest first: every run of a node that it is a part of."""
        yield self
        yield from self.enclosing

    @property
    def step(self) -> "StepKey":
        """The key of the node itself, as a step of its parent."""
        return StepKey(self.text)

    def model_call(self, number: int) -> "StepKey":
        """The key of a model call of the node, counted from 0."""
        return StepKey(f"{self.text}/llm/{number}")

    def exit_condition(self, iteration: int) -> "StepKey":
        """The key of the exit condition of a loop, after an iteration.

        >>> Place("0.3").exit_condition(2).text
        '0.3/validation/2.0'
        """
        return StepKey(f"{self.text}/validation/{iteration}.0")

    def agent_call(self) -> "StepKey":
        """The key of what an a2a node says to its agent. For agents of the config that a model calls, see
        `StepKey.called_agent`."""
        return StepKey(f"{self.text}/a2a/0")

    def tool_call(self) -> "StepKey":
        """The key of the call of a tool node. That of an llm node's first call looks the same, but a node is
        either the one or the other.

        >>> Place("0.2").tool_call().text
        '0.2/tool/0.0'
        """
        return StepKey(f"{self.text}/tool/0.0")


class StepKey(msgspec.Struct, frozen=True):
    """Which step of a turn it is. ``text`` is its written form; it is not checked."""

    text: str

    @property
    def place(self) -> Place:
        """The place of the node that the step belongs to."""
        return Place(self.text.partition("/")[0])

    @property
    def is_limit(self) -> bool:
        """Whether it stands for a limit of the run at its place."""
        return "/limit/" in self.text

    def lets_go_on(self, place: Place) -> bool:
        """Whether a decision about this step may let a run at a place, or below it, go on: it is one of its
        own, or a limit that holds for it.

        >>> branch = Place("0.1")
        >>> StepKey("0/limit/max_llm_calls").lets_go_on(branch), StepKey("0/tool/0.0").lets_go_on(branch)
        (True, False)
        """
        is_anew = self.text.startswith(f"{place.text}~")  # it belongs to the agent, which has begun anew
        return is_anew or place.contains(self.place) or (self.is_limit and self.place.contains(place))

    def tool_call(self, index: int) -> "StepKey":
        """The key of a tool call, from that of the model call that asked for it. The position in the answer
        tells the calls apart, because some providers repeat their ids in each answer.

        >>> StepKey("0.1/llm/3").tool_call(0).text
        '0.1/tool/3.0'
        """
        place, _, number = self.text.partition("/llm/")
        return StepKey(f"{place}/tool/{number}.{index}")

    @property
    def number(self) -> int:
        """The number of a model call.

        >>> StepKey("0.1/llm/3").number
        3
        """
        return int(self.text.rpartition("/")[2])

    def validation(self, index: int) -> "StepKey":
        """The key of a validation of the answer that this model call gave, by the validator at a position.

        >>> StepKey("0.1/llm/3").validation(0).text
        '0.1/validation/3.0'
        """
        place, _, number = self.text.partition("/llm/")
        return StepKey(f"{place}/validation/{number}.{index}")

    @property
    def validated(self) -> "StepKey | None":
        """The model call whose answer a validation is about; None if this is no validation.

        >>> StepKey("0.1/validation/3.1").validated.text
        '0.1/llm/3'
        """
        place, is_validation, number = self.text.partition("/validation/")
        return StepKey(f"{place}/llm/{number.partition('.')[0]}") if is_validation else None

    @property
    def asked_by(self) -> "StepKey":
        """The model call that asked for this tool call.

        >>> StepKey("0.1/tool/3.0").asked_by.text
        '0.1/llm/3'
        """
        place, _, call = self.text.partition("/tool/")
        return StepKey(f"{place}/llm/{call.partition('.')[0]}")

    def called_agent(self, name: str) -> Place:
        """The place of an agent that this tool call or validation calls.

        >>> StepKey("0.1/tool/3.0").called_agent("search").text
        '0.1.search@3-0'
        >>> StepKey("0.1/validation/3.1").called_agent("critic").text
        '0.1.critic@v3-1'
        """
        caller, step, call = self.text.split("/", 2)
        mark = "v" if step == "validation" else ""
        return Place(f"{caller}.{name}@{mark}{call.replace('.', '-')}")

    def started_agent(self, name: str, index: int) -> Place:
        """The place of the agent at a position, from 0, among those that this tool call starts.

        >>> StepKey("0.1/tool/3.0").started_agent("search", 1).text
        '0.1.search@3-0-1'
        """
        return Place(f"{self.called_agent(name).text}-{index}")

    def fork(self, index: int) -> Place:
        """The place of the fork at a position, from 0, among those that this tool call starts.

        >>> StepKey("0.1/tool/3.0").fork(1).text
        '0.1.self@3-0-1'
        """
        return self.started_agent(FORK, index)


ROOT = Place("0")
