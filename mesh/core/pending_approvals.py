"""The approvals of the open turn, and which of them wait for a person, kept up to date with each event. Pure.

After every event it is asked whether an approval waits, which is the oldest, and until when. So the answers
are kept: what an event costs does not depend on how many approvals wait.
"""

from collections import Counter, OrderedDict
from datetime import datetime, timedelta
from heapq import heappop, heappush

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.events import ApprovalRequired, as_moment
from mesh.core.places import FORK, Place
from mesh.core.verdict import Remember, reaches


class PendingApprovals:
    """See the module. An approval has the number of its event in the turn.

    It is *unanswered* until it is decided or its step has a result. It is *pending* if it also counts: nobody
    waits for what a node asked that has ended."""

    def __init__(self) -> None:
        # Ordered, so that the oldest one is found at once, however many before it were decided.
        self._unanswered: OrderedDict[int, ApprovalRequired] = OrderedDict()
        self._pending: OrderedDict[int, ApprovalRequired] = OrderedDict()
        self._asked: dict[str, list[int]] = {}  # the unanswered ones by uuid, and by step
        self._of_step: dict[str, list[int]] = {}
        self._questions: dict[str, list[ApprovalRequired]] = {}  # all of the turn, by uuid
        self._times_asked: Counter[str] = Counter()
        # Of the pending ones: how many need a token, when they expire (a heap), who asks for what may be
        # remembered for good.
        self._needing_token = 0
        self._deadlines: list[tuple[str, int]] = []
        self._deadline: dict[int, str] = {}  # of each of them that expires
        # The places of agents that a person has paused; and of the approvals there, whose time does not run
        # meanwhile, since when.
        self._held: set[str] = set()
        self._suspended: dict[int, str] = {}
        self._asking: Counter[str] = Counter()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingApprovals) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bool__(self) -> bool:
        """Whether an approval is pending."""
        return bool(self._pending)

    @property
    def pending(self) -> list[ApprovalRequired]:
        """The pending approvals, oldest first."""
        return [*self._pending.values()]

    @property
    def oldest(self) -> ApprovalRequired | None:
        """The oldest pending approval."""
        return next(iter(self._pending.values()), None)

    @property
    def unanswered(self) -> list[ApprovalRequired]:
        """The approvals that nobody has answered, those inside of completed nodes included."""
        return [*self._unanswered.values()]

    @property
    def first_deadline(self) -> str:
        """When the first pending approval expires; empty if none does."""
        return self._deadlines[0][0] if self._deadlines else ""

    def deadline(self, uuid: str) -> str:
        """When a pending approval expires; empty if it does not, or not while its agent is paused."""
        waiting = (n for n in self._asked.get(uuid, ()) if n in self._pending)
        number = next(waiting, None)
        return "" if number is None or number in self._suspended else self._deadline.get(number, "")

    def hold(self, place: Place, time: str) -> None:
        """A person has paused the agent at a place: the time of what is asked there does not run."""
        self._held.add(place.text)
        for number, asked in self._pending.items():
            if number in self._deadline and place.contains(asked.place):
                self._suspended.setdefault(number, time)
        self._forget_stale()

    def let_go(self, place: Place, time: str) -> None:
        """The agent goes on: what is asked there may wait for as much longer as it was paused."""
        self._held.discard(place.text)
        for number in [number for number in self._suspended if not self._is_held(self._pending[number])]:
            since = self._suspended.pop(number)
            self._deadline[number] = _later(self._deadline[number], since, time)
            heappush(self._deadlines, (self._deadline[number], number))

    def _is_held(self, asked: ApprovalRequired) -> bool:
        return any(at.text in self._held for at in asked.place.scopes)

    def _forget_stale(self) -> None:
        """The first entry of the heap is one that holds."""
        while self._deadlines:
            deadline, number = self._deadlines[0]
            if self._deadline.get(number) == deadline and number not in self._suspended:
                return
            heappop(self._deadlines)

    @property
    def needs_token(self) -> bool:
        """Whether a pending approval waits for a caller with a bearer token."""
        return self._needing_token > 0

    @property
    def asking(self) -> tuple[str, ...]:
        """The names of the agents for which an approval is pending that a grant for always may cover, in
        order; the root agent is the empty name."""
        return tuple(sorted(self._asking))

    def get(self, uuid: str) -> ApprovalRequired | None:
        """The pending approval with this uuid, if it is one."""
        found = (self._pending.get(number) for number in self._asked.get(uuid, ()))
        return next((asked for asked in found if asked is not None), None)

    def questions(self, uuid: str) -> list[ApprovalRequired]:
        """What was asked in the turn under this uuid, answered or not."""
        return self._questions.get(uuid, [])

    def times_asked(self, step: str) -> int:
        """How many approvals a step has asked for in the turn."""
        return self._times_asked[step]

    def ask(self, number: int, asked: ApprovalRequired, *, is_answered: bool, counts: bool) -> None:
        """Takes an approval. ``counts``: no node around it has ended."""
        self._questions.setdefault(asked.uuid, []).append(asked)
        self._times_asked[asked.step] += 1
        if is_answered:
            return
        self._unanswered[number] = asked
        self._asked.setdefault(asked.uuid, []).append(number)
        self._of_step.setdefault(asked.step, []).append(number)
        if counts:
            self._wait(number, asked)

    def decide(self, uuid: str) -> None:
        """A person has decided."""
        self._answer(self._asked.get(uuid, ()))

    def end_step(self, step: str) -> None:
        """A step has a result, so that what it asked is not needed any more."""
        self._answer(self._of_step.get(step, ()))

    def drop(self, number: int) -> None:
        """A node around an approval has ended, if this is the number of one."""
        asked = self._pending.pop(number, None)
        if asked is None:
            return
        self._needing_token -= APPROVAL_KINDS[asked.kind].needs_token
        self._deadline.pop(number, None)
        self._suspended.pop(number, None)
        self._forget_stale()
        if may_be_covered(asked, "always"):
            agent = asking_agent(asked, "")
            self._asking[agent] -= 1
            if not self._asking[agent]:
                del self._asking[agent]

    def _answer(self, numbers: "list[int] | tuple[()]") -> None:
        for number in [*numbers]:
            self.drop(number)
            asked = self._unanswered.pop(number)
            _discard(self._asked, asked.uuid, number)
            _discard(self._of_step, asked.step, number)

    def _wait(self, number: int, asked: ApprovalRequired) -> None:
        self._pending[number] = asked
        self._needing_token += APPROVAL_KINDS[asked.kind].needs_token
        if asked.expires_at:
            self._deadline[number] = asked.expires_at
            if self._is_held(asked):
                self._suspended[number] = asked.time
            else:
                heappush(self._deadlines, (asked.expires_at, number))
        if may_be_covered(asked, "always"):
            self._asking[asking_agent(asked, "")] += 1


def may_be_covered(asked: ApprovalRequired, by: Remember) -> bool:
    """Whether a decision about another approval, which is remembered for so long, may answer this one. What
    another agent asks is allowed there, or not at all."""
    return asked.remote_question is None and reaches(asked.remember, by)


def asking_agent(asked: ApprovalRequired, root: str) -> str:
    """The name of the agent that asks, of a fork that of the agent it is; ``root`` is the root agent's."""
    return next((name for name in reversed(asked.agent_path) if name != FORK), root)


def _later(deadline: str, since: str, until: str) -> str:
    """A deadline, later by the time between two moments. An imported journal may say anything."""
    try:
        waited = datetime.fromisoformat(until) - datetime.fromisoformat(since)
        return as_moment(datetime.fromisoformat(deadline) + max(waited, timedelta()))
    except (ValueError, TypeError, OverflowError):
        return deadline


def _discard(numbers: dict[str, list[int]], key: str, number: int) -> None:
    numbers[key].remove(number)
    if not numbers[key]:
        del numbers[key]
