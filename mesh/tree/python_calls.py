"""Calls of ``python``: code that a model writes, which starts forks of its node and waits for them.

    run_call → `_PythonCall`     a durable call: all that it does is asked of the journal
                 └ `AgentsOfCode`   what the code asks: a fork is started, the ends of forks are told

The code itself runs in a process that has nothing of its own (`mesh.python`). What it asks, and what it was
answered, are `CodeStep`s. So a later pass runs the code again, and its questions are answered from the
journal until it comes to one that is new. The answer to a wait does not repeat what the forks said: it says
which of them had ended, and their ends are in the journal already.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from mesh.core.durable_call import Ask
from mesh.core.events import ApprovalRequired, LlmCall, ToolCall, ToolResult
from mesh.core.execution import step_id
from mesh.core.messages import ToolSpec
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict
from mesh.mcp.schema import problems
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.python.interpreter import MOST_CODE, Code, Interpreter
from mesh.python.proven import PythonRefused
from mesh.tree.agents_at_work import AgentsAtWork, StartPlan
from mesh.tree.agents_of_code import AgentsOfCode, nanoseconds
from mesh.tree.calls import (
    MOST_SHOWN,
    CallSettings,
    Returned,
    bounded,
    run_call,
    too_deep,
)
from mesh.tree.calls_for_policies import agent_call
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.spawn_calls import ExchangeSoFar, StartingCall
from mesh.tree.steps import Steps

PYTHON = ToolSpec(
    "python",
    "Runs Python code in a sandbox: the standard library, no network, no other processes, no files but those "
    "in its working folder, which is empty at the beginning and removed at the end. Returns what the code "
    "writes to stdout, and the value of the last expression as JSON. The code may start copies of you that "
    "know all that you know by now, and work beside it: `fork(prompt) -> int` starts one, which is told the "
    "prompt, and returns its handle; `wait(handle) -> str` returns its answer; `wait([handles], any=False, "
    "timeout=None) -> list` waits for all or for one, with None for those that have not ended. A copy that "
    "failed raises `ForkFailed`. The code may be run again: clock and random numbers are the same each time, "
    "and `time.sleep` does not wait.",
    {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Python code. Nothing of earlier calls is left."}
        },
        "required": ["code"],
        "additionalProperties": False,
    },
)
"""The tool of nodes with ``python``."""
InterpreterFor = Callable[[], Awaitable[Interpreter]]
"""Gives the interpreter of this process, in a sandbox that holds. Raises `PythonRefused`."""


class PythonCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of ``python`` of one node. ``max_depth`` bounds how many agents call each other. ``review``:
    a person agrees to each call first."""

    settings: CallSettings
    interpreter: InterpreterFor
    max_depth: int = 5
    review: bool = False

    def takes(self, call: ToolCall) -> bool:
        """Whether a call is one of these."""
        return call.name == PYTHON.name

    async def run(
        self, agents: AgentsAtWork, exchange: ExchangeSoFar, steps: Steps, step: StepKey, call: ToolCall
    ) -> ToolResult | PassEnd:
        """See `run_call`. Forks that the code has started in an earlier pass go on."""
        driver = _PythonCall(self, agents, exchange, steps, step, call)
        ended = await run_call(driver, steps, step, call, self.settings)
        agents.go_on_below(step, driver.exchange_of)
        if isinstance(ended, ToolResult):
            agents.tell(ended.told)
        return ended

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        if found := problems(PYTHON.input_schema, call.arguments):
            return f"Invalid arguments for {call.name}:\n{found}"
        size = len(call.arguments["code"].encode("utf-8", "replace"))
        return f"The code has {size:,} bytes; {MOST_CODE:,} are allowed." if size > MOST_CODE else ""

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        return await self.settings.verdict(self.policy_call(call.arguments, inline=False), grants)

    def policy_call(self, arguments: dict[str, Any], *, inline: bool) -> PolicyCall:
        """A call, as policies see it."""
        who, node = self.settings.agent, self.settings.name
        own = agent_call("agent", who, node, PYTHON.name, arguments, destructive=False, inline=inline)
        return msgspec.structs.replace(own, must_ask=self.review)


class _PythonCall(StartingCall[PythonCalls]):
    """One call. What its code asks is journaled, too."""

    # -- as it describes itself

    def problem(self, arguments: dict[str, Any]) -> str:
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def policy_call(self, arguments: dict[str, Any]) -> PolicyCall:
        inline = not self._calls.settings.asks(self._steps.turn)
        return self._calls.policy_call(arguments, inline=inline)

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # of others, none has
        return bool(self._steps.started_in(self._step))

    # -- effects

    async def run(self, arguments: dict[str, Any]) -> Returned | PassEnd:
        try:
            interpreter = await self._calls.interpreter()
        except PythonRefused as problem:
            return Returned(f"Error: no code is run here: {problem}", is_error=True)
        self._agents.go_on_below(self._step, self.exchange_of)
        refusal = partial(self._refusal, arguments)
        forks = AgentsOfCode(self._agents, self._steps, self._step, self.exchange_of, refusal, "python")
        code = Code(arguments["code"], self._seed, self._started_ns)
        end = await interpreter.run(code, forks.recorded(), forks)
        if end is None:
            return PAUSED
        return Returned(end.text, is_error=bool(end.error), told=forks.told)

    async def _refusal(self, arguments: dict[str, Any], plan: StartPlan) -> str:
        """Why the code may not start a fork; empty if it may. Nobody can be asked about one, but whoever
        agreed to the code agreed to its forks."""
        settings, asked = self._calls.settings, {"prompt": plan.task}
        fork = agent_call(
            "agent", settings.agent, settings.name, "fork", asked, destructive=False, inline=True
        )
        if too_many := too_deep("fork", self._steps.turn.depth, self._calls.max_depth):
            return too_many
        verdict = (await settings.gate.ask_policy(fork, self._steps)).verdict
        if verdict.decision == "ask" and not await self._is_agreed_to(arguments):
            return "a person has to agree before a fork starts, so that code cannot start it"
        return verdict.told if verdict.decision == "denied" else ""

    async def _is_agreed_to(self, arguments: dict[str, Any]) -> bool:
        """Whether the code runs only because a person agreed to it, now or for later calls."""
        code = self._calls.policy_call(arguments, inline=not self._calls.settings.asks(self._steps.turn))
        return (await self._calls.settings.verdict(code, ())).decision == "ask"

    @property
    def _seed(self) -> bytes:
        turn = self._steps.turn
        return sha256(step_id(turn.conversation_id, turn.turn, turn.nonce, self._step.text).encode()).digest()

    @property
    def _started_ns(self) -> int:
        """The time of the answer that made the call, which is journaled."""
        answer = self._steps.known(self._step.asked_by, LlmCall)
        assert answer is not None  # only a model makes such a call
        return nanoseconds(answer.time)

    # -- for people

    def question(self, action: Ask) -> ApprovalRequired:
        code = bounded(action.arguments["code"], MOST_SHOWN)
        return self.approval(action, f"Run this Python code\n{code}")
