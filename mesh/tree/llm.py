"""The llm node asks its model, runs the tools that the model calls, and asks again, until it answers in
text. If its answers are checked, it asks again until one has passed."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import msgspec

from mesh.core.events import AgentsReported, AgentTold, LlmCall, LlmReserved, Preview, ToolCall, ToolResult
from mesh.core.history import news_message
from mesh.core.messages import ANSWERING_TOOLS, Assistant, Message, Result, Results, ToolSpec, User
from mesh.core.places import FORK, ROOT, StepKey
from mesh.core.verdict import Verdict
from mesh.llm.outputs import text_of
from mesh.llm.schema_forms import as_result
from mesh.policy.grants import Grant
from mesh.tree.agent_call import AgentCalls
from mesh.tree.agents_at_work import AgentsAtWork, StartableAgents, StartPlan, as_json
from mesh.tree.agents_of_code import AgentsOfCode
from mesh.tree.ask_user import ASK_USER, QuestionCalls
from mesh.tree.branches import Branch, run_together
from mesh.tree.calls import too_deep
from mesh.tree.model_call import ModelCalls, Prompt, told
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.python_calls import PYTHON, PythonCalls
from mesh.tree.remote_call import RemoteCalls
from mesh.tree.spawn_calls import ExchangeSoFar, SpawnCalls
from mesh.tree.steps import Steps
from mesh.tree.template import render
from mesh.tree.tool_call import ToolCalls
from mesh.tree.turn import AbandonedTask, PassInput, UnsettledCall
from mesh.tree.validation import AnswerChecks, Objection

EXIT_LOOP = ToolSpec(
    "exit_loop",
    "Ends the loop that this work is repeated in. Call it when nothing is left to improve.",
    {"type": "object", "properties": {}, "additionalProperties": False},
)
"""The tool of nodes with ``can_exit_loop``."""
_REPORT = """Your answer does not count yet, because agents that you had started still worked, or you had \
not waited for them. All of them have ended now:
{}
Take this into account and give your answer, in full."""
_EXITED = "The loop ends here."
_EXIT_TAKES_NOTHING = " exit_loop takes no arguments: nobody has read yours."
_EXITS_WITH_ANSWER = (
    "The loop ends with the answer that passes its checks next. Give that answer now, in full."
)
_HAS_NEWS = (
    "This call has no effect: while you made it, you were told something, which follows. Take it into "
    "account and give your result again."
)
_KEEPS_TURN = (
    "This call has no effect: the turn cannot end here, because an answer that waits for yours is checked. "
    "Give your result to your caller, as your answer."
)
_RESULT = as_result({"type": "string", "description": "The answer, in full."})
COMPLETE_TASK = ToolSpec(
    "complete_task", "Ends your work with this result. Call it when the task is done.", _RESULT
)
"""The tool of nodes with ``can_complete_task``: it ends the agent that the node is a part of."""
RETURN_TO_USER = ToolSpec(
    "return_to_user",
    "Gives this result to the user as the answer and ends everything, also the agents that called you.",
    _RESULT,
)
"""The tool of nodes with ``can_return_to_user``: it ends the turn."""


_RunCall = Callable[[Steps, StepKey, ToolCall], Coroutine[Any, Any, ToolResult | PassEnd]]


class _KindOfCalls(Protocol):
    """The calls of one kind that a node makes."""

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        ...


class Tools:
    """All that one llm node may call. ``ask_user`` None: it cannot ask the person; ``spawn`` None: its model
    starts no agents; ``python`` None: it runs no code. ``startable`` is what starts there, if anything does.
    ``ending`` are the tools that end something: they have no effect but that."""

    def __init__(
        self,
        mcp: ToolCalls,
        remote: RemoteCalls,
        agents: AgentCalls,
        ask_user: QuestionCalls | None,
        ending: Sequence[ToolSpec] = (),
        spawn: SpawnCalls | None = None,
        python: PythonCalls | None = None,
        startable: StartableAgents | None = None,
    ) -> None:
        self.startable = startable
        self.unwaited = spawn.unwaited if spawn else "report"
        self._spawn = spawn
        self._python = python
        self._mcp = mcp
        self._remote = remote
        self._agents = agents
        self._ask_user = ask_user
        self._ending = {spec.name for spec in ending}
        beside = (*(spawn.other_specs if spawn else ()), *((PYTHON,) if python else ()))
        own = (*((ASK_USER,) if ask_user else ()), *beside, *ending)
        others = tuple(tool.spec for tool in remote.offered)
        starting = spawn.starting_specs if spawn else ()
        self._of_others, self._own = (*agents.specs, *starting, *others), own
        self._seen: dict[tuple[bool, bool], tuple[ToolSpec, ...]] = {}
        self._specs: dict[tuple[bool, bool], tuple[ToolSpec, ...]] = {}

    def specs(self, turn: PassInput, only: Sequence[str] | None = None) -> tuple[ToolSpec, ...]:
        """The tools as models see them in a pass: no agents where its depth is the greatest one allowed, and
        of the others the ``only`` ones that a person has left (see `may_call`). The very same object until
        the tools change: providers keep what they made of it."""
        specs = self._specs_at(turn)
        return specs if only is None else tuple(spec for spec in specs if self.may_call(spec.name, only))

    def may_call(self, tool: str, only: Sequence[str]) -> bool:
        """Whether a tool is among those that a person has left to the agent. Those by which it ends its work,
        or deals with the agents that it has started, stay in any case."""
        return (
            tool in only or tool in self._ending or (self._spawn is not None and self._spawn.deals_with(tool))
        )

    def _specs_at(self, turn: PassInput) -> tuple[ToolSpec, ...]:
        offered = self._mcp.toolbox.specs
        where = has_agents, may_end_turn = turn.depth < self._agents.max_depth, turn.may_end_turn
        if offered is not self._seen.get(where):
            own = [spec for spec in self._own if may_end_turn or spec.name != RETURN_TO_USER.name]
            self._seen[where] = offered
            allowed = [spec for spec in offered if not self._mcp.is_denied(spec.name)]
            self._specs[where] = (*allowed, *(self._of_others if has_agents else ()), *own)
        return self._specs[where]

    def runs_beside_others(self, call: ToolCall) -> bool:
        """Whether a call may run at the same time as its neighbours: an agent of the config, or a tool that
        does not ask and may be repeated. Every other call keeps its order."""
        if self._agents.takes(call):
            return True
        tool = self._mcp.toolbox.tools.get(call.name)
        return tool is not None and tool.is_harmless

    async def run(
        self, steps: Steps, step: StepKey, call: ToolCall, agents: AgentsOfCode | None = None
    ) -> ToolResult | PassEnd:
        """See `mesh.tree.calls.run_call`. Not for calls that start agents or wait for them; ``agents`` are
        those that a tool of a Python file may start."""
        if self._agents.takes(call):
            return await self._agents.run(steps, step, call)
        if call.name in self._remote.agents:
            return await self._remote.run(steps, step, call)
        if self._ask_user is not None and call.name == ASK_USER.name:
            return await self._ask_user.run(steps, step, call)
        return await self._mcp.run(steps, step, call, agents)

    def may_ask(self, call: ToolCall) -> bool:
        """Whether a call is one of a tool that may start agents of the node: see `mesh.tools.asking`."""
        return self._spawn is not None and self._kind_of(call) is self._mcp and self._mcp.may_ask(call)

    async def refusal(self, steps: Steps, plan: StartPlan, *, by_person: bool = False) -> str:
        """Why a tool may not start an agent, or a person may not add one; empty if it may. No other person
        can be asked about one."""
        startable = self.startable
        is_fork = plan.agent == FORK
        if startable is None or (startable.fork is None if is_fork else plan.agent not in startable.agents):
            return f"the node may not start {'forks' if is_fork else f'the agent {plan.agent}'} (spawn)"
        if is_too_deep := too_deep(plan.agent, steps.turn.depth, self._agents.max_depth):
            return is_too_deep
        assert self._spawn is not None  # see `may_ask`
        inline = not self._agents.settings.asks(steps.turn)
        for call in self._spawn.policy_calls_of(plan, inline=inline):
            verdict = (await self._agents.settings.gate.ask_policy(call, steps)).verdict
            if verdict.decision == "ask" and not by_person:
                what = "a fork" if is_fork else f"the agent {plan.agent}"
                return f"a person has to agree before {what} starts, so that no tool can start it"
            if verdict.decision == "denied":
                return verdict.told
        return ""

    def problems(self, call: ToolCall) -> str:
        return self._kind_of(call).problems(call)

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        return await self._kind_of(call).verdict(call, grants)

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        return await self._mcp.preview(call, offset)

    async def cancel(self, task: AbandonedTask) -> None:
        await self._remote.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await self._mcp.settle(call)

    def ends_something(self, call: ToolCall) -> bool:
        """Whether it is a call of a tool that ends the loop, the agent or the turn."""
        return call.name in self._ending

    def starts_or_waits(self, call: ToolCall) -> bool:
        """Whether it is a call of a tool for agents that work beside the node."""
        return self._beside(call) is not None

    async def run_beside(
        self, agents: AgentsAtWork, exchange: ExchangeSoFar, steps: Steps, step: StepKey, call: ToolCall
    ) -> ToolResult | PassEnd:
        """Runs a call that starts agents or waits for them."""
        calls = self._beside(call)
        assert calls is not None  # see `starts_or_waits`
        return await calls.run(agents, exchange, steps, step, call)

    def _beside(self, call: ToolCall) -> SpawnCalls | PythonCalls | None:
        if self._spawn is not None and self._spawn.takes(call):
            return self._spawn
        return self._python if self._python is not None and self._python.takes(call) else None

    def answers(self, call: ToolCall, turn: PassInput) -> bool:
        """Whether its result is an answer in this pass."""
        is_one = call.name in ANSWERING_TOOLS and self.ends_something(call)
        return is_one and (turn.may_end_turn or call.name != RETURN_TO_USER.name)

    def exits_loop(self, call: ToolCall) -> bool:
        """Whether it ends the loop around the node."""
        return call.name == EXIT_LOOP.name and self.ends_something(call)

    def _kind_of(self, call: ToolCall) -> _KindOfCalls:
        if (calls := self._beside(call)) is not None:
            return calls
        if self._agents.takes(call):
            return self._agents
        if call.name in self._remote.agents:
            return self._remote
        if self._ask_user is not None and call.name == ASK_USER.name:
            return self._ask_user
        return self._mcp  # which also says of an unknown name that there is no such tool


class LlmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an llm node. ``prompt`` is a template. ``max_iterations`` bounds the model calls of the
    node at one place (not the iterations of a loop), ``max_tool_calls`` the tool calls of one answer,
    ``max_parallel_calls`` those of them that run at the same time."""

    prompt: str = ""
    max_iterations: int = 10
    max_tool_calls: int = 100
    max_parallel_calls: int = 8


class LlmWork:
    """`Work` of an llm node. At the root, its model sees the turns before; elsewhere, the message alone; a
    fork sees what the agent before it saw. ``of_forks`` are the model calls of forks, whose answers are not
    checked: they go to the agent before them."""

    def __init__(
        self,
        settings: LlmSettings,
        model_calls: ModelCalls,
        tools: Tools,
        checks: AnswerChecks | None = None,
        of_forks: ModelCalls | None = None,
    ) -> None:
        self._settings = settings
        self._model_calls = model_calls
        self._of_forks = of_forks or model_calls
        self._tools = tools
        self._checks = checks

    async def __call__(self, steps: Steps) -> PassEnd:
        startable = self._tools.startable
        refusal = partial(self._tools.refusal, steps, by_person=True)
        agents = AgentsAtWork(startable, steps, refusal) if startable else None
        is_fork = steps.turn.place.is_fork
        work = _LlmPass(
            self._settings,
            self._of_forks if is_fork else self._model_calls,
            self._tools,
            None if is_fork else self._checks,
            agents,
        )
        run = partial(work.run, steps)
        return await (agents.run(run) if agents else run())


class _LlmPass:
    """One pass of an llm node. ``agents`` None: it starts none."""

    def __init__(
        self,
        settings: LlmSettings,
        model_calls: ModelCalls,
        tools: Tools,
        checks: AnswerChecks | None,
        agents: AgentsAtWork | None,
    ) -> None:
        self._settings = settings
        self._model_calls = model_calls
        self._tools = tools
        self._checks = checks
        self._agents = agents
        self._exchange: ExchangeSoFar | None = None  # up to the calls that are being made
        self._heard: set[str] = set()  # the ids of the news that the model has read

    async def run(self, steps: Steps) -> PassEnd:
        """Runs it to its end."""
        end = await self._run(steps)
        if steps.is_held and end.status == "completed":
            return PAUSED  # the answer is known: once it may go on, it ends by that
        if end.status != "paused":
            # Invariant: nothing is awaited between the last look at the news and this.
            steps.stop_hearing()
        return end

    async def _run(self, steps: Steps) -> PassEnd:
        turn, limit = steps.turn, self._settings.max_iterations
        messages: list[Message] = [*turn.exchange] or [
            *(turn.history if turn.place == ROOT else ()),
            User(turn.user_message),
        ]
        # It may run again in this pass: what it was about to read when it paused, it has not read.
        self._heard.clear()
        first = i = 0  # the first model call since an answer was checked, and the next one
        exits = False  # whether the loop ends with the answer that passes
        while i - first < limit:
            step = turn.place.model_call(i)
            if steps.is_held and steps.known(step, LlmCall) is None:
                return PAUSED
            changes = steps.changes
            prompt = self._prompt(steps, step, messages, changes)
            model_calls = self._model_calls
            if "model" in changes:
                model_calls = model_calls.with_model(changes["model"])
            answer = await model_calls.make(steps, step, prompt)
            if answer is None:  # it was broken off: what it was to read is read with the next one
                self._heard.difference_update(prompt.heard)
                continue
            if isinstance(answer, PassEnd):
                return _exiting(await self._without_answer(steps, step, answer), exits)
            # What the model was told of its budget stays: later prompts begin as this one did.
            messages = list(told(prompt, _reservation(steps, step, answer)).messages)
            said = Assistant(answer.text, answer.tool_calls)
            if not answer.tool_calls:
                ended = await self._reported(steps, step, answer) or await self._judged(steps, step, answer)
                if not isinstance(ended, PassEnd):
                    text = ended.text if isinstance(ended, AgentsReported) else ended.feedback
                    messages += [said, User(text)]
                elif self._goes_on(steps, ended) and i + 1 - first < limit:
                    messages.append(said)
                else:
                    return _exiting(ended, exits)
            else:
                results = await self._run_calls(steps, step, answer, messages)
                if isinstance(results, PassEnd):
                    return results
                messages += [said, Results(tuple(results))]
                exits = exits or any(map(self._exits, answer.tool_calls, results))
            i += 1
            first = i if self._checks and self._checks.has_judged(steps, step) else first
        stopped = PassEnd(
            "completed",
            f"I stopped after {limit} model calls without a final answer (limits.max_tool_iterations). "
            f"What the tools did so far stands.",
        )
        return _exiting(await self._without_answer(steps, turn.place.model_call(i), stopped), exits)

    def _prompt(
        self, steps: Steps, step: StepKey, messages: Sequence[Message], changes: Mapping[str, Any]
    ) -> Prompt:
        """What the model is sent: what was said so far and the news, with what a person has changed."""
        as_of, turn, news = steps.told_now, steps.turn, self._news(steps, step)
        if "task" in changes:
            turn = msgspec.structs.replace(turn, state={**turn.state, "task": changes["task"]})
        return Prompt(
            render(changes.get("prompt", self._settings.prompt), turn),
            (*messages, *map(news_message, news)),
            self._tools.specs(turn, changes.get("tools")),
            tuple(each.id for each in news),
            as_of,
        )

    def _news(self, steps: Steps, step: StepKey) -> list[AgentTold]:
        """What is new in the input of a model call: what it was recorded with, or all that was not read
        before."""
        known, news = steps.known(step, LlmCall), {each.id: each for each in steps.news}
        found = [id for id in news if id not in self._heard] if known is None else known.heard
        self._heard.update(found)
        return [news[id] for id in found if id in news]

    def _has_news(self, steps: Steps) -> bool:
        return any(each.id not in self._heard for each in steps.news)

    def _goes_on(self, steps: Steps, end: PassEnd) -> bool:
        """Whether the model is asked once more although its answer is one: it was told something meanwhile. A
        limit ends it all the same."""
        return end.status == "completed" and not end.forced and self._has_news(steps)

    async def _reported(
        self, steps: Steps, step: StepKey, answer: LlmCall
    ) -> AgentsReported | PassEnd | None:
        """What the model is told of agents that have worked on past its answer; None if the answer may count.
        After an answer that a limit has forced, the model cannot be asked again."""
        agents = self._agents
        if agents is None:
            return None
        known = steps.known(step, AgentsReported)
        if known is None:
            if not agents.untold or answer.forced or self._tools.unwaited == "delete":
                return None
            found = await agents.wait(agents.untold, "all", None)
            if isinstance(found, PassEnd):
                return found
            text = _REPORT.format(as_json(found.entries))
            known = steps.record(step, AgentsReported(text=text, told=found.told))
        agents.tell(known.told)
        return known

    async def _judged(self, steps: Steps, step: StepKey, answer: LlmCall) -> PassEnd | Objection:
        """Whether an answer in text counts. One that a limit has forced is the last one."""
        text = final_text(answer)
        if self._checks is None:
            return PassEnd("completed", text, forced=answer.forced)
        judged = await self._checks.judge(steps, step, text, is_last=bool(answer.forced))
        return judged if isinstance(judged, Objection) else _forced(judged, answer.forced)

    async def _without_answer(self, steps: Steps, step: StepKey, ended: PassEnd) -> PassEnd:
        """How the pass ends that did not come to an answer."""
        if self._checks is None or ended.status != "completed":
            return ended
        return _forced(await self._checks.no_answer(steps, step, ended.text), ended.forced)

    async def _run_calls(
        self, steps: Steps, step: StepKey, answer: LlmCall, messages: Sequence[Message]
    ) -> list[Result] | PassEnd:
        """Runs the tool calls of an answer, in their order; neighbours that may run at the same time do.
        ``messages`` are those up to the answer."""
        calls = answer.tool_calls
        is_too_long = len(calls) > self._settings.max_tool_calls
        results: list[Result] = []
        for batch in self._batches(calls):
            self._exchange = ExchangeSoFar(messages, answer, tuple(results))
            ended = await self._run_batch(steps, step, calls, batch, refuses=is_too_long)
            if isinstance(ended, PassEnd):
                return ended
            results += ended
        # Where answers are checked, text beside the call is none: the loop ends with the answer that passes.
        if self._checks is None and any(map(self._exits, calls, results)):
            return PassEnd("completed", answer.text, exits=True)
        return results

    def _exits(self, call: ToolCall, result: Result) -> bool:
        return self._tools.exits_loop(call) and not result.is_error

    def _batches(self, calls: Sequence[ToolCall]) -> list[list[int]]:
        """The positions of the calls, those together that run at the same time."""
        batches: list[list[int]] = []
        for beside, group in groupby(range(len(calls)), lambda i: self._tools.runs_beside_others(calls[i])):
            positions = list(group)
            batches += [positions] if beside else [[position] for position in positions]
        return batches

    async def _run_batch(
        self, steps: Steps, step: StepKey, calls: Sequence[ToolCall], batch: Sequence[int], *, refuses: bool
    ) -> list[Result] | PassEnd:
        keys = [step.tool_call(position) for position in batch]
        branches = [
            Branch(
                partial(
                    self._unless_held,
                    self._refuse if refuses else self._runner(steps.turn, calls, position),
                    steps,
                    key,
                    calls[position],
                ),
                partial(_is_of, key),
            )
            for key, position in zip(keys, batch, strict=True)
        ]
        if len(branches) == 1:
            ended: list[ToolResult | PassEnd] = [await branches[0].run()]
        else:
            ended = await run_together(steps, branches, at_most=self._settings.max_parallel_calls)
        # What ends more goes first: the turn, then the agent. A pause ends neither, and would hide them.
        for status in ("stopped", "completed", "failed", "paused"):
            for end in ended:
                if isinstance(end, PassEnd) and end.status == status:
                    return end
        await steps.work()
        done = [end for end in ended if isinstance(end, ToolResult)]
        return [
            Result(calls[position].id, calls[position].name, result.content, result.is_error)
            for position, result in zip(batch, done, strict=True)
        ]

    async def _unless_held(
        self, run: _RunCall, steps: Steps, step: StepKey, call: ToolCall
    ) -> ToolResult | PassEnd:
        """A call of a node that a person has paused does not begin, and neither does one of a tool that a
        person has taken away. What has begun goes on."""
        if steps.of(step):
            return await run(steps, step, call)
        if steps.is_held:
            return PAUSED
        only = steps.changes.get("tools")
        if only is not None and not self._tools.may_call(call.name, only):
            why = f"{call.name} was not run: a person has taken this tool away from you meanwhile."
            result = ToolResult(call_id=call.id, tool=call.name, content=why, is_error=True, skipped=True)
            return steps.record(step, result)
        return await run(steps, step, call)

    async def _refuse(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """Refuses a call of an answer with too many calls. None of them is run, not even the first ones: they
        are one plan, and the model can make a smaller one. Calls that began before there was a bound go
        on."""
        if steps.of(step):
            return await self._runner(steps.turn, (call,), 0)(steps, step, call)
        refusal = (
            f"You made more than {self._settings.max_tool_calls} tool calls in one answer "
            "(limits.max_tool_calls); none of them was run. Make fewer calls at a time."
        )
        result = ToolResult(call_id=call.id, tool=call.name, content=refusal, is_error=True, skipped=True)
        return steps.record(step, result)

    def _runner(self, turn: PassInput, calls: Sequence[ToolCall], position: int) -> _RunCall:
        """What runs a call of an answer."""
        if self._tools.starts_or_waits(calls[position]):
            return self._start_or_wait
        if self._tools.may_ask(calls[position]):
            return self._run_asking
        if not self._tools.ends_something(calls[position]):
            return self._tools.run
        if self._tools.exits_loop(calls[position]):
            return self._exit
        if not self._tools.answers(calls[position], turn):
            return self._keep_turn
        if self._checks is None:
            return self._end
        is_second = any(self._tools.answers(call, turn) for call in calls[:position])
        return self._refuse_second if is_second else self._answer

    async def _start_or_wait(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """A call that starts agents, waits for them or ends one."""
        agents, exchange = self._agents, self._exchange
        assert agents is not None and exchange is not None  # see `_runner`
        return await self._tools.run_beside(agents, exchange, steps, step, call)

    async def _run_asking(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """A call of a tool that may start agents and wait for them. Those that it has started go on."""
        agents, exchange = self._agents, self._exchange
        assert agents is not None and exchange is not None  # see `_runner`
        refusal, exchange_of = partial(self._tools.refusal, steps), partial(exchange.of_fork, call)
        of_code = AgentsOfCode(agents, steps, step, exchange_of, refusal, "tool")
        of_code.go_on()
        ended = await self._tools.run(steps, step, call, of_code)
        agents.rest()
        if isinstance(ended, ToolResult):
            of_code.tell(ended.told)
        return ended

    async def _refuse_second(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """Refuses what would be another answer beside one that did not pass."""
        text = "This result was not looked at: there is another one before it. Give one at a time."
        return steps.known(step, ToolResult) or steps.record(
            step, ToolResult(call_id=call.id, tool=call.name, content=text, is_error=True)
        )

    async def _keep_turn(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """Refuses to end the turn past the checks of an answer."""
        known = steps.known(step, ToolResult) or steps.record(
            step, ToolResult(call_id=call.id, tool=call.name, content=_KEEPS_TURN, is_error=True)
        )
        return known if known.is_error else _given(known)

    async def _answer(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """A call whose result is an answer that is checked."""
        assert self._checks is not None  # see `_runner`
        schema = self._checks.schema
        known, problem = steps.known(step, ToolResult), ending_problem(call, is_text=schema is None)
        shown = ""
        if known is None and not problem:
            text = text_of(schema, call.arguments["result"])
            judged = await self._checks.judge(steps, step.asked_by, text)
            if isinstance(judged, PassEnd):
                if judged.status != "completed":
                    return judged
                if steps.is_held:
                    return PAUSED
                if not self._has_news(steps):
                    return await self._give(steps, step, call, judged)
                problem = _HAS_NEWS
            else:
                problem, shown = judged.feedback, judged.shown
        if known is None:
            known = steps.record(
                step,
                ToolResult(call_id=call.id, tool=call.name, content=problem, is_error=True, shown=shown),
            )
        return known if known.is_error else _given(known)

    async def _give(self, steps: Steps, step: StepKey, call: ToolCall, end: PassEnd) -> PassEnd:
        """Records an answer that a call gives to the caller or to the user."""
        is_for_user = call.name == RETURN_TO_USER.name
        result = ToolResult(
            call_id=call.id,
            tool=call.name,
            content=end.text,
            ends_turn=is_for_user,
            output=end.output,
            invalid=end.invalid,
        )
        if is_for_user:
            await steps.end_turn(step, result)
        else:
            steps.record(step, result)
        return _given(result)

    async def _end(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """A call of a tool that ends the agent or the turn, with an answer that is not checked."""
        if known := steps.known(step, ToolResult):
            return known if known.is_error else _given(known)
        if problem := ending_problem(call) or (_HAS_NEWS if self._has_news(steps) else ""):
            result = ToolResult(call_id=call.id, tool=call.name, content=problem, is_error=True)
            return steps.record(step, result)
        return await self._give(steps, step, call, PassEnd("completed", call.arguments["result"]))

    async def _exit(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """A call of the tool that ends the loop. The other calls of the answer run first; where answers are
        checked, an answer has to pass, too."""
        if steps.known(step, ToolResult) is None and self._checks is None and self._has_news(steps):
            return steps.record(
                step, ToolResult(call_id=call.id, tool=call.name, content=_HAS_NEWS, is_error=True)
            )
        content = _EXITED if self._checks is None else _EXITS_WITH_ANSWER
        content += _EXIT_TAKES_NOTHING if call.arguments or call.malformed else ""
        return steps.known(step, ToolResult) or steps.record(
            step, ToolResult(call_id=call.id, tool=call.name, content=content)
        )


def _reservation(steps: Steps, step: StepKey, answer: LlmCall) -> LlmReserved | None:
    """The reservation that an answer settled; None without a budget."""
    if not steps.turn.call_scopes:
        return None
    found = (e for e in steps.of(step) if isinstance(e, LlmReserved) and e.attempt == answer.attempt)
    return next(found, None)


def ending_problem(call: ToolCall, *, is_text: bool = True) -> str:
    """What is wrong with the arguments of a tool that gives an answer; empty if nothing is. Whether a result
    fits its schema, where it is no text, is not looked at here."""
    result = call.arguments.get("result")
    if call.malformed or call.arguments.keys() != {"result"} or (is_text and not isinstance(result, str)):
        return f'Invalid arguments for {call.name}: expected {{"result": "…"}} and nothing else'
    return ""


def _given(result: ToolResult) -> PassEnd:
    """How the pass ends in which an answer was given to the caller or to the user."""
    if result.ends_turn:
        return PassEnd("stopped", result.content)
    return PassEnd("completed", result.content, ends_agent=True, output=result.output, invalid=result.invalid)


def _exiting(ended: PassEnd, exits: bool) -> PassEnd:
    """The end of a pass whose answer ends the loop, too, if the model has said so."""
    return msgspec.structs.replace(ended, exits=exits and ended.status == "completed")


def _forced(end: PassEnd, limit: str) -> PassEnd:
    return msgspec.structs.replace(end, forced=limit) if limit else end


def _is_of(call: StepKey, step: StepKey) -> bool:
    """Whether a step is this call, belongs to the agent that it called, or is a limit that holds for it."""
    is_around = step.is_limit and step.place.contains(call.place)
    return is_around or step == call or any(place.begun_in == call for place in step.place.scopes)


def final_text(answer: LlmCall) -> str:
    """The answer that a person reads, in whatever way the model ended it."""
    if answer.finish_reason == "refusal":
        return answer.text or "The model refused to answer."
    if answer.finish_reason == "content_filter":
        return answer.text or "The provider's content filter held the answer back."
    if answer.finish_reason == "length":
        return f"{answer.text}\n[cut: the model reached its output limit]".lstrip()
    return answer.text or "The model gave an empty answer."
