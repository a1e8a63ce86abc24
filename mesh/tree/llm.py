"""The llm node asks its model, runs the tools that the model calls, and asks again, until it answers in
text."""

from functools import partial
from typing import Protocol

import msgspec

from mesh.core.errors import LlmError
from mesh.core.events import LlmCall, TextDelta, ToolCall, ToolCallDelta, ToolResult, Trace
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.core.places import ROOT, StepKey
from mesh.llm.port import Llm, LlmRequest
from mesh.runtime.failpoints import failpoint
from mesh.tree.ask_user import ASK_USER, QuestionCalls
from mesh.tree.node import PassEnd
from mesh.tree.remote_call import RemoteCalls
from mesh.tree.steps import Steps
from mesh.tree.template import render
from mesh.tree.tool_call import ToolCalls
from mesh.tree.turn import AbandonedTask, UnsettledCall

EXIT_LOOP = ToolSpec(
    "exit_loop",
    "Ends the loop that this work is repeated in. Call it when nothing is left to improve.",
    {"type": "object", "properties": {}, "additionalProperties": False},
)
"""The tool of nodes with ``can_exit_loop``."""
_EXITED = "The loop ends here."


class _KindOfCalls(Protocol):
    """The calls of one kind that a node makes."""

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """See `mesh.tree.calls.run_call`."""
        ...

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...


class Tools:
    """All that one llm node may call. ``ask_user`` None: it cannot ask the person."""

    def __init__(self, mcp: ToolCalls, remote: RemoteCalls, ask_user: QuestionCalls | None) -> None:
        self._mcp = mcp
        self._remote = remote
        self._ask_user = ask_user
        self._own = tuple(tool.spec for tool in remote.agents.values()) + ((ASK_USER,) if ask_user else ())
        self._seen: tuple[ToolSpec, ...] = ()
        self._specs: tuple[ToolSpec, ...] = self._own

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them. The very same object until the tools change: providers keep what they
        made of it."""
        offered = self._mcp.toolbox.specs
        if offered is not self._seen:
            self._seen, self._specs = offered, (*offered, *self._own)
        return self._specs

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """See `mesh.tree.calls.run_call`."""
        return await self._kind_of(call).run(steps, step, call)

    def problems(self, call: ToolCall) -> str:
        return self._kind_of(call).problems(call)

    async def cancel(self, task: AbandonedTask) -> None:
        await self._remote.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await self._mcp.settle(call)

    def _kind_of(self, call: ToolCall) -> _KindOfCalls:
        if call.name in self._remote.agents:
            return self._remote
        if self._ask_user is not None and call.name == ASK_USER.name:
            return self._ask_user
        return self._mcp  # which also says of an unknown name that there is no such tool


class LlmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an llm node. ``prompt`` is a template. ``timeout_s`` bounds one model call,
    ``max_iterations`` the model calls of the node at one place, ``max_llm_calls`` those of the whole turn,
    ``max_tool_calls`` the tool calls of one answer."""

    model: str
    prompt: str = ""
    max_iterations: int = 10
    max_llm_calls: int = 500
    max_tool_calls: int = 100
    max_tokens: int | None = None
    timeout_s: float = 60.0
    can_exit_loop: bool = False


class LlmWork:
    """`Work` of an llm node. At the root, its model sees the turns before; elsewhere, the message alone."""

    def __init__(self, settings: LlmSettings, llm: Llm, tools: Tools) -> None:
        self._settings = settings
        self._llm = llm
        self._tools = tools

    async def __call__(self, steps: Steps) -> PassEnd:
        turn, limit = steps.turn, self._settings.max_iterations
        messages: list[Message] = [*(turn.history if turn.place == ROOT else ()), User(turn.user_message)]
        system = render(self._settings.prompt, turn)
        for i in range(limit):
            step = turn.place.model_call(i)
            ask = partial(self._ask, steps, step, system, tuple(messages))
            answer = await steps.once(step, LlmCall, ask)
            if not answer.tool_calls:
                return PassEnd("completed", final_text(answer))
            results: list[Result] = []
            too_many = len(answer.tool_calls) > self._settings.max_tool_calls
            call_tool = self._refuse if too_many else self._call
            for j, call in enumerate(answer.tool_calls):
                done = await call_tool(steps, step.tool_call(j), call)
                if isinstance(done, PassEnd):
                    return done
                results.append(Result(call.id, call.name, done.content, done.is_error))
            if not too_many and any(self._exits(call) for call in answer.tool_calls):
                return PassEnd("completed", answer.text, exits=True)
            messages += [Assistant(answer.text, answer.tool_calls), Results(tuple(results))]
        return PassEnd(
            "completed",
            f"I stopped after {limit} model calls without a final answer (limits.max_tool_iterations). "
            f"What the tools did so far stands.",
        )

    async def _refuse(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """Refuses a call of an answer with too many calls. None of them is run, not even the first ones: they
        are one plan, and the model can make a smaller one. Calls that began before there was a bound go
        on."""
        if steps.of(step):
            return await self._call(steps, step, call)
        refusal = (
            f"You made more than {self._settings.max_tool_calls} tool calls in one answer "
            "(limits.max_tool_calls); none of them was run. Make fewer calls at a time."
        )
        result = ToolResult(call_id=call.id, tool=call.name, content=refusal, is_error=True, skipped=True)
        return steps.record(step, result)

    async def _call(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        if self._exits(call):
            return steps.known(step, ToolResult) or steps.record(
                step, ToolResult(call_id=call.id, tool=call.name, content=_EXITED)
            )
        return await self._tools.run(steps, step, call)

    def _exits(self, call: ToolCall) -> bool:
        return self._settings.can_exit_loop and call.name == EXIT_LOOP.name

    async def _ask(self, steps: Steps, step: StepKey, system: str, messages: tuple[Message, ...]) -> LlmCall:
        settings, specs = self._settings, self._tools.specs
        if steps.llm_calls >= settings.max_llm_calls:
            made = f"{steps.llm_calls} model calls, as many as limits.max_llm_calls allows"
            raise LlmError(f"the turn has made {made}; what the tools did so far stands")
        request = LlmRequest(
            model=settings.model,
            system=system,
            messages=messages,
            tools=(*specs, EXIT_LOOP) if settings.can_exit_loop else specs,
            max_tokens=settings.max_tokens,
            timeout_s=settings.timeout_s,
            deltas=steps.watched,
        )
        answer: LlmCall | None = None
        async for event in self._llm.stream(request):
            match event:
                case LlmCall():
                    answer = event
                case TextDelta() | ToolCallDelta() | Trace():
                    steps.show(step, event)
        failpoint("llm.returned")
        if answer is None:
            raise LlmError(f"model {settings.model} ended its stream without an answer")
        # Cut here, so that the journal stays bounded. One call over the bound is kept: a later pass knows by
        # it that there were too many.
        kept = answer.tool_calls[: settings.max_tool_calls + 1]
        return msgspec.structs.replace(answer, tool_calls=kept)


def final_text(answer: LlmCall) -> str:
    """The answer that a person reads, in whatever way the model ended it."""
    if answer.finish_reason == "refusal":
        return answer.text or "The model refused to answer."
    if answer.finish_reason == "content_filter":
        return answer.text or "The provider's content filter held the answer back."
    if answer.finish_reason == "length":
        return f"{answer.text}\n[cut: the model reached its output limit]".lstrip()
    return answer.text or "The model gave an empty answer."
