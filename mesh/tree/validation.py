"""Checks the answers of an llm node before anybody relies on them, and says when a loop ends.

    answer ── the validators, in their order ──► all agree: it counts
                 │ the first that objects
                 ▼
              the model is told, and answers again      (at most `max_runs` answers)
                 │ no runs left
                 ▼
              on_invalid: the node fails, the answer is accepted and marked, or a person decides

Each verdict is a step of its own, journaled as a `Validation`: a later pass takes it from the journal. An
answer that no further model call can follow, such as the last one that a budget allows, is checked too.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mesh.core.errors import ValidatorError
from mesh.core.events import Validation
from mesh.core.places import StepKey
from mesh.runtime.failpoints import failpoint
from mesh.tree.calls import CallSettings, bounded
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.validators import AnswerValidator, Candidate, PersonValidator

_MOST_MARK = 2_000


class Objection(msgspec.Struct, frozen=True):
    """An answer did not pass: the model is told ``feedback``, and may answer again. ``shown`` as in
    `Validation`."""

    feedback: str
    shown: str = ""


class AnswerChecks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of one node. ``settings`` are those of its questions to people, ``schema`` is that of its
    answers, if they have one."""

    validators: Sequence[AnswerValidator]
    settings: CallSettings
    schema: dict[str, Any] | None = None
    max_runs: int = 3
    on_invalid: Literal["fail", "accept", "ask"] = "fail"

    async def judge(
        self, steps: Steps, step: StepKey, text: str, *, is_last: bool = False
    ) -> PassEnd | Objection:
        """Decides whether the answer of a model call counts. ``is_last``: no further model call may follow.
        Raises `ValidatorError`, `Superseded`, `Unavailable`."""
        number = self._number(steps, step)
        answer = Candidate(text)
        for index, validator in enumerate(self.validators):
            key = step.validation(index)
            verdict = await verdict_of(validator, steps, key, answer, number, self.max_runs)
            if isinstance(verdict, PassEnd):
                return verdict
            if not verdict.valid:
                if number < self.max_runs and not is_last:
                    return Objection(verdict.feedback, verdict.shown)
                told, shown = _objection(verdict)
                return await self._at_last(steps, step, answer, told, number, shown)
            answer = validator.taken(steps, key, answer)
        return _counts(answer)

    def has_judged(self, steps: Steps, step: StepKey) -> bool:
        """Whether the answer of a model call has been checked."""
        return steps.known(step.validation(0), Validation) is not None

    async def no_answer(self, steps: Steps, step: StepKey, why: str) -> PassEnd:
        """Returns what follows if the model gave no answer: ``why`` takes its place. Raises as `judge`."""
        number, told, shown = self._number(steps, step), "there is no answer", "there is no answer"
        if last := self._last_objection(steps, step):
            told, shown = (f"{told}; the last one did not pass: {each}" for each in _objection(last))
        return await self._at_last(steps, step, Candidate(why), told, number, shown)

    def _last_objection(self, steps: Steps, step: StepKey) -> Validation | None:
        """The last verdict against an answer of the node, before a model call."""
        for number in reversed(range(step.number)):
            answer = step.place.model_call(number)
            for index in range(len(self.validators)):
                known = steps.known(answer.validation(index), Validation)
                if known is not None and not known.valid:
                    return known
        return None

    def _number(self, steps: Steps, step: StepKey) -> int:
        """The number of an answer among those of the node that were checked, from 1."""
        place, last = step.place, step.number
        return 1 + sum(self.has_judged(steps, place.model_call(number)) for number in range(last))

    async def _at_last(
        self, steps: Steps, step: StepKey, answer: Candidate, objection: str, number: int, shown: str
    ) -> PassEnd:
        """Returns what follows an objection after which the model may not answer again. ``shown`` is the
        objection for those who are not to see the answer."""
        match self.on_invalid:
            case "accept":
                return _counts(answer, objection)
            case "fail":
                run = f"run {number} of {self.max_runs}"
                raise ValidatorError(f"the answer did not pass ({run}): {shown}")
            case "ask":
                return await self._asked(steps, step, answer, objection, number, shown)

    async def _asked(
        self, steps: Steps, step: StepKey, answer: Candidate, objection: str, number: int, shown: str
    ) -> PassEnd:
        about = f"The answer did not pass (run {number} of {self.max_runs}): {objection}"
        person = PersonValidator(self.settings, self.schema, about)
        key = step.validation(len(self.validators))
        verdict = await verdict_of(person, steps, key, answer, number, self.max_runs)
        if isinstance(verdict, PassEnd):
            return verdict
        if not verdict.valid:
            why = f"{shown}. A person rejected it: {verdict.feedback}"
            raise ValidatorError(f"the answer did not pass: {why}")
        taken = person.taken(steps, key, answer)
        return _counts(taken, "" if taken is not answer else objection)


async def verdict_of(
    validator: AnswerValidator, steps: Steps, key: StepKey, answer: Candidate, number: int, of: int
) -> Validation | PassEnd:
    """Returns the verdict of a validator and records it, or how the pass ends if there is none yet. Raises
    `ValidatorError`, `Superseded`, `Unavailable`."""
    if known := steps.known(key, Validation):
        return known
    if steps.is_held and not steps.of(key):
        return PAUSED
    verdict = await validator.verdict(steps, key, answer)
    if isinstance(verdict, PassEnd):
        return verdict
    failpoint("validate.returned")
    return steps.record(
        key,
        Validation(
            name=validator.name,
            kind=validator.kind,
            number=number,
            of=of,
            valid=verdict.valid,
            feedback=verdict.feedback,
            shown=verdict.shown,
        ),
    )


def _objection(verdict: Validation) -> tuple[str, str]:
    """An objection with its validator, and the same for those who are not to see the answer."""
    told, shown = verdict.feedback, verdict.shown or verdict.feedback
    return bounded(f"{verdict.name}: {told}", _MOST_MARK), bounded(f"{verdict.name}: {shown}", _MOST_MARK)


def _counts(answer: Candidate, invalid: str = "") -> PassEnd:
    return PassEnd("completed", answer.text, output=answer.output, invalid=invalid)
