"""What must be journaled before an event, as the head of `mesh.core.events` says it, and what must not be.

Both are told as keys of events. A journal all of whose events have what they depend on before them has only
prefixes that are closed under "depends on".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mesh.config.model import Config
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    CodeStep,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LlmCall,
    NodeCompleted,
    Paused,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.history import NOT_RUN
from mesh.core.places import FORK, ROOT, Place, StepKey
from mesh.tree.plan import PlannedNode, callable_agents, tree_of

Past = Mapping[str, AnyEvent]
TOOLS_FOR_AGENTS = ("spawn", "fork", "wait", "stop")
NEVER = "what cannot be"
"""A key that no event has: the event that depends on it is wrong where it stands."""
_CREATED, _FINAL = "0||ConversationCreated", "ConversationCompleted"


@dataclass(frozen=True)
class Plans:
    """The tree of a config, and those of the agents that its nodes may call."""

    root: PlannedNode
    called: Mapping[str, PlannedNode]

    @classmethod
    def of(cls, config: Config) -> "Plans":
        return cls(tree_of(config), {agent.path: agent for agent in callable_agents(config)})

    def at(self, place: str) -> PlannedNode:
        planned = self.root
        for part in place.split(".")[1:]:
            name, is_call, _ = part.partition("@")
            if name == FORK:
                continue
            planned = self.called[name] if is_call else planned.children[int(part.partition("#")[0])]
        return planned

    def runs_beside(self, call: ToolCall) -> bool:
        """Whether a call may run at the same time as its neighbours."""
        return call.name == "look" or call.name in self.called


def violations(journal: Sequence[AnyEvent], config: Config) -> list[str]:
    """What is wrong with the order of a journal of this config."""
    root = Plans.of(config)
    past: dict[str, AnyEvent] = {}
    found: list[str] = []
    for event in journal:
        if event.key in past:
            found.append(f"{event.seq}: {event.key} is there twice")
        found += [
            f"{event.seq}: {event.key} before {key}" for key in depends_on(event, past, root) - past.keys()
        ]
        found += [f"{event.seq}: {event.key} after {key}" for key in excludes(event, past) & past.keys()]
        past[event.key] = event
    return found


def depends_on(event: AnyEvent, past: Past, root: Plans) -> set[str]:
    """The keys of what must be before an event. ``past``: what is, by key, in its order."""
    if isinstance(event, ConversationCreated):
        return set()
    needs = {_CREATED}
    match event:
        case ConversationCompleted():
            return needs | _closed(event.turn, past)
        case UserMessage():
            return needs | _closed(event.turn - 1, past)
        case _:
            opened = f"{event.turn}||UserMessage"
            agents = {_started(event, place) for place in _agents_around(event, root)}
            return needs | agents | {opened, *_earlier_nodes(event, root), *_within(event, past, root)}


def excludes(event: AnyEvent, past: Past) -> set[str]:
    """The keys of what must not be before an event: its turn's end, the end of a node it happened in. What a
    claimed call came to is true in any case, also where the agent was ended meanwhile."""
    ends = {f"{event.turn}||{end}" for end in ("Completed", "Error")}
    if isinstance(event, ConversationCompleted):
        return set()
    if isinstance(event, CodeStep):
        ends.add(f"{event.turn}|{event.step}|ToolResult")
    is_truth = isinstance(event, ToolResult) and f"{event.turn}|{event.step}|ToolIntent|0" in past
    at = event.node.rpartition(".")[0] if isinstance(event, NodeCompleted) else event.node
    at = "" if is_truth else at
    if isinstance(event, AgentStarted) and event.by == "map":
        ends |= {
            e.key for e in past.values() if _is_in_item(e, event)
        }  # all items begin before any does anything
    while at:
        ends.add(_done(event, at))
        if call := Place(at).call:
            ends |= {f"{event.turn}|{call.text}|{end}" for end in ("ToolResult", "Validation")}
        at = at.rpartition(".")[0]
    return ends | {f"{turn}||{_FINAL}" for turn in range(event.turn + 1)}


def _begun_anew(event: AgentStarted, past: Past) -> str:
    """The intervention by which an agent has begun anew."""
    told = (e for e in past.values() if isinstance(e, AgentTold) and e.restarts)
    return next((e.key for e in told if e.place.anew == event.place), NEVER)


def _is_in_item(event: AnyEvent, start: AgentStarted) -> bool:
    """Whether an event is in an item of the map that starts this one, and not the start of an item."""
    above = start.step.rpartition(".")[0]
    is_start = isinstance(event, AgentStarted) and event.step.rpartition(".")[0] == above
    return event.turn == start.turn and event.node.startswith(f"{above}.") and not is_start


def _within(event: AnyEvent, past: Past, root: Plans) -> set[str]:
    """What an event depends on in its own node, or of its own turn."""
    match event:
        case LlmCall():
            heard = {f"{event.turn}|{event.node}|AgentTold|{id}" for id in event.heard}
            return heard | _first_answers(event.turn, event.node, _ordinal(event.step)[0], past)
        case AgentTold(from_person=True):
            return {_started(event, event.place)} if event.place != ROOT else set()
        case AgentTold():
            asked = StepKey(event.id).asked_by
            return {f"{event.turn}|{asked.text}|LlmCall", _started(event, event.place)}
        case Validation() | ApprovalRequired(kind="validation"):
            return _before_validation(root, event, StepKey(event.step), past) | _judged(root, event, past)
        case AgentStarted() if event.place.first != event.place:
            return {_begun_anew(event, past)}
        case AgentStarted(by="map"):
            return set()  # what wrote the list comes before, as an earlier node
        case AgentStarted(by="person"):
            told = (e for e in past.values() if isinstance(e, AgentTold) and e.adds is not None)
            return {next((e.key for e in told if f"{e.step}.{e.adds.handle}" == event.step), NEVER)}
        case AgentStarted():
            call = event.place.begun_in
            assert call is not None
            if call.validated is not None:
                return _before_validation(root, event, call, past)
            return _call(root, event.turn, call, past) | _approved(event, call.text, past)
        case ToolIntent() if _returned(event.turn, past):
            return {NEVER}  # no destructive tool starts in a turn that an agent has ended
        case ToolIntent() | ToolResult() | ApprovalRequired():
            key = StepKey(event.step)
            needs = _call(root, event.turn, key, past) | _person(event, past) | _answer(root, event, past)
            return needs | _of_agents(event) if isinstance(event, ToolResult) else needs
        case CodeStep():
            key = StepKey(event.step)
            before = {f"{event.turn}|{event.step}|CodeStep|{event.number - 1}"} if event.number else set()
            return _call(root, event.turn, key, past) | before | _answered_to_code(event, past)
        case AgentsReported():
            return {f"{event.turn}|{event.step}|LlmCall", *_ends_told(event)}
        case ApprovalResolved():
            return _question(event, past)
        case NodeCompleted():
            return _done_below(root, event, past)
        case Paused():
            asked = any(isinstance(e, ApprovalRequired) and e.turn == event.turn for e in past.values())
            return set() if asked else {NEVER}
        case Completed() if returned := _returned(event.turn, past):
            return set() if event.response == returned.content else {NEVER}  # the first one counts
        case Completed(stopped_by_person=True):
            return set() if any(_ends_turn(e) for e in past.values() if e.turn == event.turn) else {NEVER}
        case Completed():
            return _all_of(root, event, ROOT.text, past)
        case _:
            assert isinstance(event, Error), event
            return set()


def _of_agents(result: ToolResult) -> set[str]:
    """The starts of the agents that a call tells of, and the ends of which it tells."""
    if result.tool not in TOOLS_FOR_AGENTS or result.is_error or result.skipped:
        return _ends_told(result)
    starts: set[str] = set()
    if result.tool in ("spawn", "fork"):
        node = result.place.text
        told = [Place(f"{node}.{entry['handle']}") for entry in json.loads(result.content)["agents"]]
        starts = {_started(result, place) for place in told}
        if any(place.started_in != StepKey(result.step) for place in told):
            return {NEVER}
    return starts | _ends_told(result)


def _answered_to_code(event: CodeStep, past: Past) -> set[str]:
    """The start of the agent whose handle the code got, or the ends of those of which it was told."""
    starts = [e for e in past.values() if isinstance(e, AgentStarted) and e.turn == event.turn]
    own = [e.place for e in starts if (call := e.place.started_in) and call.text == event.step]
    asked, answer = json.loads(event.asked), json.loads(event.answer)
    if handle := answer.get("handle"):
        return set() if handle <= len(own) else {NEVER}
    handles, ended = asked.get("wait", ()), answer.get("ended", ())
    told = [handle for handle, has_ended in zip(handles, ended, strict=True) if has_ended]
    return {_done(event, own[handle - 1].text) if handle <= len(own) else NEVER for handle in told}


def _ends_told(event: ToolResult | AgentsReported) -> set[str]:
    return {_done(event, place) for place in event.told}


def _done_below(root: Plans, event: NodeCompleted, past: Past) -> set[str]:
    """What the end of a node needs."""
    needs = set() if event.status == "deleted" else _ends_of_own_agents(event, event.step, past)
    return needs | _all_of(root, event, event.step, past) if event.status == "completed" else needs


def _ends_of_own_agents(event: AnyEvent, at: str, past: Past) -> set[str]:
    """The ends of all agents that a node has started: none outlives it."""
    starts = (e for e in past.values() if isinstance(e, AgentStarted) and e.turn == event.turn)
    return {_done(event, e.step) for e in starts if e.by and e.step.rpartition(".")[0] == at}


def _judged(root: Plans, event: AnyEvent, past: Past) -> set[str]:
    """All that an agent did which gave this verdict."""
    if not isinstance(event, Validation) or event.name not in root.called:
        return set()
    place = StepKey(event.step).called_agent(event.name)
    return {_started(event, place), *_all_of(root, event, place.text, past)}


def _before_validation(root: Plans, event: AnyEvent, step: StepKey, past: Past) -> set[str]:
    """What a verdict depends on, or the question to a person that leads to it: the answer, or the round of a
    loop, and the verdicts before it."""
    turn, node = event.turn, step.place.text
    number, index = _ordinal(step.text)
    planned = root.at(node)
    if planned.node.type == "loop":
        return {_done(event, Place(node).child(len(planned.children) - 1, number).text)}
    answer = StepKey(f"{node}/llm/{number}")
    needs = {f"{turn}|{answer.text}|LlmCall", *_first_answers(turn, node, number, past)}
    if index and index == len(planned.node.validators):  # a person decides at last
        needs |= _objection(turn, answer, past)
    else:
        needs |= {f"{turn}|{answer.validation(k).text}|Validation" for k in range(index)}
    if isinstance(event, Validation) and event.kind == "person":
        needs |= _decided(event, "approve" if event.valid else "reject", past)
    return needs


def _objection(turn: int, answer: StepKey, past: Past) -> set[str]:
    """That a validator objected to an answer."""
    found = any(
        isinstance(e, Validation) and not e.valid and e.turn == turn and StepKey(e.step).validated == answer
        for e in past.values()
    )
    return set() if found else {f"an objection to {answer.text}"}


def _passed(root: Plans, turn: int, at: str, number: int, past: Past) -> set[str]:
    """The verdicts about the answer that a node completed with."""
    answer = StepKey(f"{at}/llm/{number}")
    validators = root.at(at).node.validators
    if not validators or not any(answer.validation(0).text == e.step for e in past.values()):
        return set()  # it had none that could be checked
    verdicts = [past.get(f"{turn}|{answer.validation(k).text}|Validation") for k in range(len(validators))]
    if all(isinstance(verdict, Validation) and verdict.valid for verdict in verdicts):
        return set()
    return _objection(turn, answer, past)


def _closed(turn: int, past: Past) -> set[str]:
    ends = {f"{turn}||Completed", f"{turn}||Error"}
    return set() if turn == 0 or ends & past.keys() else {f"the end of turn {turn}"}


def _earlier_nodes(event: AnyEvent, root: Plans) -> Iterator[str]:
    """The ends of the nodes that come before it in the sequences and loops it is in."""
    at = ROOT.text
    for part in event.node.split(".")[1:]:
        planned = root.at(at)
        if "@" in part:
            at = f"{at}.{part}"
            continue
        index, iteration = (int(number or 0) for number in part.partition("#")[::2])
        if planned.node.type != "parallel" and index:
            yield _done(event, Place(at).child(index - 1, iteration).text)
        elif planned.node.type == "loop" and iteration > 1:
            yield _done(event, Place(at).child(len(planned.children) - 1, iteration - 1).text)
            if planned.node.exit_when:
                yield f"{event.turn}|{Place(at).exit_condition(iteration - 1).text}|Validation"
        at = f"{at}.{part}"


def _first_answers(turn: int, node: str, answers: int, past: Past) -> set[str]:
    """The first ``answers`` answers of a node's model, with the results of what they asked for."""
    needs: set[str] = set()
    for i in range(answers):
        needs.add(asked := f"{turn}|{node}/llm/{i}|LlmCall")
        answer = past.get(asked)
        calls = len(answer.tool_calls) if isinstance(answer, LlmCall) else 0
        if isinstance(answer, LlmCall) and not calls and f"{turn}|{answer.step}|AgentsReported" not in past:
            needs |= _objection(turn, StepKey(answer.step), past)
        needs |= {f"{turn}|{node}/tool/{i}.{j}|ToolResult" for j in range(calls)}
    return needs


def _call(root: Plans, turn: int, step: StepKey, past: Past) -> set[str]:
    """The answer that asked for a call, and the results of the calls before it in that answer, but for those
    that run at the same time. A tool node calls without having been asked."""
    node = step.place.text
    if root.at(node).node.type == "tool":
        return set()
    i, j = _ordinal(step.text)
    answer = past.get(asked := f"{turn}|{node}/llm/{i}|LlmCall")
    if not isinstance(answer, LlmCall):
        return {asked}
    if j >= len(answer.tool_calls):
        return {NEVER}
    while j and all(root.runs_beside(call) for call in answer.tool_calls[j - 1 : j + 1]):
        j -= 1
    before = {f"{turn}|{node}/tool/{i}.{k}|ToolResult" for k in range(j)}
    return {asked, *before, *_first_answers(turn, node, i, past)}


def _answer(root: Plans, event: AnyEvent, past: Past) -> set[str]:
    """All that an agent did which answered with this result."""
    if not isinstance(event, ToolResult) or event.tool not in root.called or event.is_error:
        return set()
    place = StepKey(event.step).called_agent(event.tool)
    return {_started(event, place), *_all_of(root, event, place.text, past)}


def _approved(event: AnyEvent, step: str, past: Past) -> set[str]:
    asked = any(isinstance(e, ApprovalRequired) and e.step == step for e in past.values())
    return _decided(event, "approve", past, step) if asked else set()


def _agents_around(event: AnyEvent, root: Plans) -> list[Place]:
    """The places of the called and started agents, and of the items of maps, that an event happened in."""
    around = event.place.enclosing if isinstance(event, AgentStarted) else event.place.scopes
    return [place for place in around if place.begun_in or place.is_added or _is_item(place, root)]


def _is_item(place: Place, root: Plans) -> bool:
    above = place.text.rpartition(".")[0]
    return bool(above) and root.at(above).node.type == "map"


def _started(event: AnyEvent, place: Place) -> str:
    return f"{event.turn}|{place.text}|AgentStarted"


def _returned(turn: int, past: Past) -> ToolResult | None:
    """What an agent returned to the user first."""
    ends = (e for e in past.values() if isinstance(e, ToolResult) and e.turn == turn and e.ends_turn)
    return next(ends, None)


def _person(event: ToolIntent | ToolResult | ApprovalRequired, past: Past) -> set[str]:
    """The claim that an outcome, a retry or a question about one needs; the decision that led here."""
    claim = f"{event.turn}|{event.step}|ToolIntent|"
    match event:
        case ToolIntent(attempt=attempt) if attempt:
            # Claimed anew because a person said so, or because the claim before it was found not begun.
            asked = f"{event.turn}|{event.step}|ApprovalRequired|unknown_outcome|{attempt - 1}" in past
            return {f"{claim}{attempt - 1}", *(_decided(event, "retry", past) if asked else ())}
        case ToolIntent():
            asked = any(isinstance(e, ApprovalRequired) and e.step == event.step for e in past.values())
            return _decided(event, "approve", past) if asked else set()
        case ApprovalRequired(kind="unknown_outcome"):
            return {f"{claim}{event.attempt}"}
        case ToolResult(skipped=True, content=content) if content == NOT_RUN:
            return {f"{claim}0"}  # it had not begun when its turn ended
        case ToolResult(skipped=True):
            return _decided(event, "skip", past) and _decided(event, "reject", past)
        case ToolResult(tool="add", is_error=False):
            return {f"{claim}0"}
        case _:
            return set()


def _decided(event: AnyEvent, decision: str, past: Past, step: str = "") -> set[str]:
    step = step or event.step
    found = any(
        isinstance(e, ApprovalResolved) and (e.turn, e.step, e.choice) == (event.turn, step, decision)
        for e in past.values()
    )
    return set() if found else {f"the decision to {decision} {step}"}


def _question(event: ApprovalResolved, past: Past) -> set[str]:
    asked = any(isinstance(e, ApprovalRequired) and e.uuid == event.uuid for e in past.values())
    return set() if asked else {f"the question {event.uuid}"}


def _ends_turn(event: AnyEvent) -> bool:
    return isinstance(event, ApprovalResolved) and event.choice == "reject" and not event.reason


def _all_of(root: Plans, event: AnyEvent, at: str, past: Past) -> set[str]:
    """All that happened in a node that completed: of an llm its answers, of a tool node its call, of the
    others their children."""
    planned = root.at(at)
    if planned.node.type == "tool":
        return {f"{event.turn}|{at}/tool/0.0|ToolResult"}
    if not planned.children:
        own_agents = _ends_of_own_agents(event, at, past)
        answers = [e for e in past.values() if isinstance(e, LlmCall) and _is_answer(e, event.turn, at)]
        if any(_completes_task(e, event.turn, at) for e in past.values()):
            return _first_answers(event.turn, at, len(answers) - 1, past) | own_agents
        if not answers:
            return {f"an answer at {at}"}
        last = len(answers) - 1
        results = _results(event.turn, at, answers[-1])
        verdicts = set() if Place(at).is_fork else _passed(root, event.turn, at, last, past)
        return _first_answers(event.turn, at, last, past) | results | verdicts | own_agents
    done = [e for e in past.values() if isinstance(e, NodeCompleted) and _is_child(e, event.turn, at)]
    if any(end.ends_agent for end in done):
        return set()
    if planned.node.type == "map":
        return _ends_of_own_agents(event, at, past)
    if planned.node.type == "parallel":
        return {_done(event, Place(at).child(index).text) for index in range(len(planned.children))}
    if done and done[-1].exits:
        return set()
    iteration = planned.node.max_iterations if planned.node.type == "loop" else 0
    ends = [e for e in past.values() if isinstance(e, Validation) and (e.turn, e.node) == (event.turn, at)]
    if ends and ends[-1].valid:
        iteration = ends[-1].number
    return {_done(event, Place(at).child(len(planned.children) - 1, iteration).text)}


def _results(turn: int, at: str, answer: LlmCall) -> set[str]:
    """The results of what an answer asked for."""
    i, _ = _ordinal(answer.step)
    return {f"{turn}|{at}/tool/{i}.{j}|ToolResult" for j in range(len(answer.tool_calls))}


def _is_answer(event: AnyEvent, turn: int, at: str) -> bool:
    return isinstance(event, LlmCall) and (event.turn, event.node) == (turn, at)


def _completes_task(event: AnyEvent, turn: int, at: str) -> bool:
    is_here = isinstance(event, ToolResult) and (event.turn, event.node) == (turn, at)
    return is_here and event.tool == "complete_task" and not event.is_error


def _is_child(event: AnyEvent, turn: int, at: str) -> bool:
    return event.turn == turn and event.step.rpartition(".")[0] == at


def _done(event: AnyEvent, at: str) -> str:
    return f"{event.turn}|{at}|NodeCompleted"


def _ordinal(step: str) -> tuple[int, int]:
    """``0.2/llm/1`` is (1, 0), ``0.2/tool/1.3`` is (1, 3)."""
    i, _, j = step.rpartition("/")[2].partition(".")
    return int(i), int(j or 0)
