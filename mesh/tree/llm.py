"""The llm node: model -> tool calls -> results -> model … until the model answers in text."""

from functools import partial

from mesh.errors import LlmError, Unavailable
from mesh.events import LlmCall
from mesh.failpoints import failpoint
from mesh.llm.port import Assistant, Llm, LlmRequest, Message, Result, Results, User
from mesh.mcp.toolbox import Toolbox
from mesh.tree.step import Steps, Superseded
from mesh.tree.tool_call import Halt, ToolStep
from mesh.tree.turn import AppendAhead, Status, TurnInput, TurnOutput

CANCELLED = "Operation cancelled by user."
"""The answer of a turn whose operation a person rejected."""


class LlmNode:
    """One llm node at ``path``. Carries any number of turns at the same time; keeps none of them."""

    def __init__(
        self,
        *,
        path: str,
        system: str,
        model: str,
        llm: Llm,
        toolbox: Toolbox,
        max_iterations: int = 10,
        max_tokens: int | None = None,
        timeout_s: float = 60.0,
        max_result_bytes: int = 65_536,
    ) -> None:
        self._path = path
        self._system = system
        self._model = model
        self._llm = llm
        self._toolbox = toolbox
        self._max_iterations = max_iterations
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._tools = ToolStep(toolbox, max_result_bytes)

    async def run(self, turn: TurnInput, append: AppendAhead) -> TurnOutput:
        """One pass. Known steps are not run again."""
        steps = Steps(turn, append)
        status: Status
        try:
            status, text = await self._loop(steps)
        except Superseded:
            await steps.take_unsent()
            return TurnOutput("superseded")
        except Unavailable as problem:
            status, text = "interrupted", str(problem)
        except LlmError as problem:
            status, text = "failed", f"node {self._path}: {problem}"
        return TurnOutput(status, text, await steps.take_unsent())

    async def _loop(self, steps: Steps) -> tuple[Status, str]:
        messages: list[Message] = [*steps.turn.history, User(steps.turn.user_message)]
        for i in range(self._max_iterations):
            request = tuple(messages)
            answer = await steps.once(f"{self._path}/llm/{i}", LlmCall, partial(self._ask, request))
            if not answer.tool_calls:
                return "completed", final_text(answer)
            results: list[Result] = []
            for j, call in enumerate(answer.tool_calls):
                outcome = await self._tools.run(steps, f"{self._path}/tool/{i}.{j}", call)
                if isinstance(outcome, Halt):
                    return outcome.value, CANCELLED if outcome is Halt.CANCELLED else ""
                results.append(Result(call.id, call.name, outcome.content, outcome.is_error))
            messages += [Assistant(answer.text, answer.tool_calls), Results(tuple(results))]
        return "completed", (
            f"I stopped after {self._max_iterations} model calls without a final answer "
            f"(limits.max_tool_iterations). What the tools did so far stands."
        )

    async def _ask(self, messages: tuple[Message, ...]) -> LlmCall:
        request = LlmRequest(
            model=self._model,
            system=self._system,
            messages=messages,
            tools=self._toolbox.specs,
            max_tokens=self._max_tokens,
            timeout_s=self._timeout_s,
        )
        answer: LlmCall | None = None
        async for event in self._llm.stream(request):
            if isinstance(event, LlmCall):
                answer = event
        failpoint("llm.returned")
        if answer is None:
            raise LlmError(f"model {self._model} ended its stream without an answer")
        return answer


def final_text(answer: LlmCall) -> str:
    """What a person reads at the end of a turn, whatever way the model ended it."""
    if answer.finish_reason == "refusal":
        return answer.text or "The model refused to answer."
    if answer.finish_reason == "content_filter":
        return answer.text or "The provider's content filter held the answer back."
    if answer.finish_reason == "length":
        return f"{answer.text}\n[cut: the model reached its output limit]".lstrip()
    return answer.text or "The model gave an empty answer."
