"""What running code asks of its node: to start agents, and how those ended that it waits for.

The code is that of a ``python`` call (`mesh.tree.python_calls`) or of a tool of a Python file
(`mesh.tools.asking`). What it asks, and what it was answered, are `CodeStep`s. The answer to a wait does
not repeat what the agents said: it says which of them had ended, and their ends are in the journal already.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from mesh.core.events import CodeStep, StartedBy
from mesh.core.execution import RecordedQuestion
from mesh.core.places import FORK, StepKey
from mesh.python.questions import (
    Answer,
    AskedSomethingElse,
    BrokenProtocol,
    ForkAnswer,
    ForkEnd,
    ForkQuestion,
    Question,
    SpawnQuestion,
    StartQuestion,
    WaitAnswer,
    WaitQuestion,
    answer_text,
    asked_text,
    question_in,
)
from mesh.tree.agents_at_work import AgentsAtWork, ExchangeOf, StartPlan
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps


class AgentsOfCode:
    """What the code of one call asks of its node: the `CodeHost` of a ``python`` call, and what answers a
    tool of a Python file. Handle n is the agent at position n - 1. ``refusal`` says why an agent may not be
    started, or nothing; ``by`` is who starts it."""

    def __init__(
        self,
        agents: AgentsAtWork,
        steps: Steps,
        step: StepKey,
        exchange_of: ExchangeOf,
        refusal: Callable[[StartPlan], Awaitable[str]],
        by: StartedBy,
    ) -> None:
        self._agents = agents
        self._steps = steps
        self._step = step
        self._exchange_of = exchange_of
        self._refusal = refusal
        self._by = by
        self._handed_out = 0  # handles, in this run and those before
        self._told: dict[str, None] = {}

    @property
    def told(self) -> tuple[str, ...]:
        """The places of the forks of whose end the code knows."""
        return tuple(self._told)

    def recorded(self) -> list[RecordedQuestion]:
        """What the code has asked in earlier runs, in order."""
        steps = sorted(
            (event for event in self._steps.of(self._step) if isinstance(event, CodeStep)),
            key=lambda event: event.number,
        )
        return [RecordedQuestion(each.asked, self._answer_of(each)) for each in steps]

    def _answer_of(self, recorded: CodeStep) -> str:
        """The recorded answer to a question, with what the forks said."""
        answer, asked = msgspec.json.decode(recorded.answer), msgspec.json.decode(recorded.asked)
        if "ended" not in answer:
            self._handed_out += "handle" in answer
            return recorded.answer
        handles = asked["wait"]
        ended = tuple(
            self._end(handle) if has_ended else None
            for handle, has_ended in zip(handles, answer["ended"], strict=True)
        )
        return answer_text(WaitAnswer(answer["at"], ended))

    async def answer(self, number: int, question: Question) -> Answer | None:
        """See `CodeHost`."""
        match question:
            case ForkQuestion() | SpawnQuestion():
                answer: Answer | None = await self._start(number, question)
                text = answer_text(answer) if answer else ""
            case WaitQuestion():
                answer = await self._waited(question)
                text = _short(answer) if answer else ""
        if answer is not None:
            self._steps.record(self._step, CodeStep(number=number, asked=asked_text(question), answer=text))
        return answer

    async def answered(self, number: int, asked: str) -> RecordedQuestion | None:
        """The answer to a question of a tool, recorded; None if what is asked about waits for a person.
        Raises `BrokenProtocol`, `AskedSomethingElse`."""
        question = question_in(asked)
        answer = await self.answer(number, question)
        return None if answer is None else RecordedQuestion(asked_text(question), answer_text(answer))

    def go_on(self) -> None:
        """Runs the agents that the call has started in an earlier pass."""
        self._agents.go_on_below(self._step, self._exchange_of)

    def tell(self, told: Sequence[str]) -> None:
        """Notes that the model knows how these agents ended."""
        self._agents.tell(told)

    async def _start(self, number: int, question: StartQuestion) -> ForkAnswer:
        plan, index = _plan(question), self._handed_out
        started = self._steps.started_in(self._step)
        if index == len(started):
            refusal = await self._refusal(plan) or await self._agents.start(
                self._step, [plan], self._by, self._exchange_of
            )
            if refusal:
                return ForkAnswer(time.time_ns(), refused=refusal)
            started = self._steps.started_in(self._step)
        # Otherwise an earlier run was gone before it could record that the agent had started.
        start = started[index]
        if (start.name, start.task) != (plan.agent, plan.task):
            before = (
                ForkQuestion(start.task) if start.place.is_fork else SpawnQuestion(start.name, start.task)
            )
            raise AskedSomethingElse(number, asked_text(before), asked_text(question))
        self._handed_out += 1
        return ForkAnswer(nanoseconds(start.time), handle=self._handed_out)

    async def _waited(self, question: WaitQuestion) -> WaitAnswer | None:
        if any(not 1 <= handle <= self._handed_out for handle in question.handles):
            raise BrokenProtocol
        places = dict.fromkeys(map(self._place, question.handles))
        until: Literal["any", "all"] = "any" if question.any else "all"
        found = await self._agents.wait([*places], until, question.timeout_s)
        if isinstance(found, PassEnd):
            return None
        return WaitAnswer(time.time_ns(), tuple(map(self._end, question.handles)))

    def _place(self, handle: int) -> str:
        return self._steps.started_in(self._step)[handle - 1].step

    def _end(self, handle: int) -> ForkEnd | None:
        place = self._place(handle)
        end = self._agents.end_of(place)
        if end is None:
            return None
        self._told[place] = None
        return ForkEnd(end.status, end.text)


def _plan(question: StartQuestion) -> StartPlan:
    if isinstance(question, ForkQuestion):
        return StartPlan(FORK, question.prompt, question.title)
    return StartPlan(question.agent, question.task, question.title)


def _short(answer: WaitAnswer) -> str:
    """An answer as it is journaled: which forks had ended."""
    ended = [end is not None for end in answer.ended]
    return msgspec.json.encode({"at": answer.at, "ended": ended}).decode()


def nanoseconds(moment: str) -> int:
    """A time of an event in nanoseconds since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1_000_000) * 1_000
