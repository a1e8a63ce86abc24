"""The tools by which a model works with agents: ``spawn``, ``fork``, ``wait``, ``tell`` and ``stop``.

A spawn, or a fork, is a durable call: its only effect is that agents start, which is journaled in one
append. What it starts works beside the node (`mesh.tree.agents_at_work`). What a ``wait`` answered is its
result, so that a later pass gets the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from mesh.core.durable_call import Ask, Refuse
from mesh.core.events import AgentTold, ApprovalRequired, LlmCall, ToolCall, ToolResult
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec
from mesh.core.places import FORK, Place, StepKey
from mesh.core.verdict import Verdict, strictness
from mesh.mcp.schema import problems
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.tree.agent_call import AgentCalls, CallableAgent
from mesh.tree.agents_at_work import AgentsAtWork, StartPlan, Waited, as_json
from mesh.tree.calls import (
    MOST_SHOWN,
    CallDriver,
    NotRun,
    Returned,
    bounded,
    listed,
    refused,
    run_call,
    too_deep,
)
from mesh.tree.calls_for_policies import agent_call
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import Hearing

NO_RESULT_YET = "This call has no result yet."
"""What a fork reads in place of the results of calls that the agent before it made beside its own."""
_MOST_TITLE = 200
_MOST_WAIT_S = 86_400.0
_HANDLES = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Handles of agents that you started.",
}

_HEARD: dict[Hearing, str] = {
    "taken": "{} reads it before its next step.",
    "ended": "{} has ended, and does not read it any more.",
    "mute": "{} has no model of its own that could read it.",
    "full": "{} may have no more agents.",
    "unknown": "No agent with the handle {} was started by you, or by an agent that you started.",
}

_STOPPED: dict[Hearing, str] = {
    **_HEARD,
    "taken": "{} is deleted.",
    "ended": "{} has ended already.",
}

Unwaited = Literal["report", "delete"]


def _spawn_spec(agents: Sequence[CallableAgent], limits: Mapping[str, Any]) -> ToolSpec:
    about = "\n".join(f"{agent.name}: {agent.spec.description}" for agent in agents)
    one = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": sorted(agent.name for agent in agents)},
            "task": {
                "type": "string",
                "description": "What the agent is to do, in full: it knows nothing else.",
            },
            "title": {"type": "string", "description": "A few words about it, for people."},
            "budget": {
                "type": "object",
                "description": "What it may use at most, with all that it starts.",
                "properties": dict(limits),
                "additionalProperties": False,
            },
        },
        "required": ["agent", "task"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"agents": {"type": "array", "items": one, "minItems": 1}},
        "required": ["agents"],
        "additionalProperties": False,
    }
    text = (
        "Starts agents, which work beside you, all at the same time. Returns their handles at once; wait for "
        f"them with `wait`. The agents are:\n{about}"
    )
    return ToolSpec("spawn", text, schema)


_FORK = ToolSpec(
    "fork",
    "Starts a copy of you that knows all that you know by now, and gets this prompt as the result of this "
    "call. It works beside you. Returns its handle at once; wait for it with `wait`.",
    {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "description": "What the copy is to do."},
            "title": {"type": "string", "description": "A few words about it, for people."},
        },
        "required": ["prompt"],
        "additionalProperties": False,
    },
)
_WAIT = ToolSpec(
    "wait",
    "Waits for agents that you started, and returns how each stands and what it brought. Without `handles`, "
    "for all of which you have not been told yet. `until` any: returns when one of them has ended. When "
    "`timeout_s` is over, it returns how they stand by then.",
    {
        "type": "object",
        "properties": {
            "handles": _HANDLES,
            "until": {"type": "string", "enum": ["all", "any"]},
            "timeout_s": {"type": "number", "minimum": 0, "maximum": _MOST_WAIT_S},
        },
        "additionalProperties": False,
    },
)
_TELL = ToolSpec(
    "tell",
    "Tells something to an agent that you started, or that one of these started, while it works. It reads it "
    "before its next step. To get an answer, wait for it.",
    {
        "type": "object",
        "properties": {"handle": {"type": "string"}, "message": {"type": "string", "minLength": 1}},
        "required": ["handle", "message"],
        "additionalProperties": False,
    },
)
_STOP = ToolSpec(
    "stop",
    "Ends an agent that you started, or that one of these started, and all that it has started. What it did "
    "stays done.",
    {
        "type": "object",
        "properties": {"handle": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["handle", "reason"],
        "additionalProperties": False,
    },
)


class SpawnCalls:
    """The calls of one node that start agents and wait for them. ``forks``: it may fork itself. ``review``: a
    person agrees to each spawn and fork first. ``unwaited`` is what becomes of agents that still work when
    the model answers in text. ``limits`` are the keys that the ``budget`` of a spawn may have, each with its
    JSON Schema."""

    def __init__(
        self,
        agents: AgentCalls,
        *,
        forks: bool = False,
        review: bool = False,
        unwaited: Unwaited = "report",
        limits: Mapping[str, Any],
    ) -> None:
        self._agents = agents
        self.settings = agents.settings
        self.max_depth = agents.max_depth
        self.review = review
        self.unwaited = unwaited
        spawns = (_spawn_spec([*agents.agents.values()], limits),) if agents.agents else ()
        own = (_FORK,) if forks else ()
        self._starting = {spec.name: spec for spec in (*spawns, *own)}
        self._others = {spec.name: spec for spec in (_WAIT, _TELL, _STOP)}

    @property
    def starting_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that start agents: they are not offered where agents are too deep."""
        return tuple(self._starting.values())

    @property
    def other_specs(self) -> tuple[ToolSpec, ...]:
        """The tools for agents that were started."""
        return tuple(self._others.values())

    def takes(self, call: ToolCall) -> bool:
        """Whether a call is one of these tools."""
        return call.name in self._starting or call.name in self._others

    def deals_with(self, tool: str) -> bool:
        """Whether it is one of the tools for agents that were started."""
        return tool in self._others

    async def run(
        self, agents: AgentsAtWork, exchange: "ExchangeSoFar", steps: Steps, step: StepKey, call: ToolCall
    ) -> ToolResult | PassEnd:
        """See `run_call`. Agents that the call has started in an earlier pass go on."""
        if call.name in self._starting:
            driver = _StartCall(self, agents, exchange, steps, step, call)
            ended = await run_call(driver, steps, step, call, self.settings)
            agents.go_on_below(step, driver.exchange_of)
            return ended
        known = steps.known(step, ToolResult)
        if known is None:
            made: ToolResult | PassEnd
            if problem := self.problems(call):
                made = self._result(call, problem, is_error=True)
            elif call.name == _TELL.name:
                made = await self._tell(steps, step, call)
            elif call.name == _STOP.name:
                made = await self._stop(agents, steps, step, call)
            else:
                made = await self._wait(agents, call)
            if isinstance(made, PassEnd):
                return made
            known = steps.record(step, made)
        agents.tell(known.told)
        return known

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        spec = self._starting.get(call.name) or self._others[call.name]
        found = problems(spec.input_schema, call.arguments)
        return f"Invalid arguments for {call.name}:\n{found}" if found else ""

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        if call.name not in self._starting:
            return Verdict("allowed", "", "")
        calls = self.policy_calls(call.name, call.arguments, inline=False)
        verdicts = [await self.settings.verdict(each, grants) for each in calls]
        return max(verdicts, key=lambda verdict: strictness(verdict.decision))

    def policy_calls(self, tool: str, arguments: Mapping[str, Any], *, inline: bool) -> list[PolicyCall]:
        """A spawn or a fork, as policies see it: the call itself, and that of each agent which it starts."""
        who, node = self.settings.agent, self.settings.name
        own = agent_call("agent", who, node, tool, arguments, destructive=False, inline=inline)
        named = ((self._agents.agents.get(plan.agent), plan.task) for plan in plans_of(tool, arguments))
        return [
            msgspec.structs.replace(own, must_ask=self.review),
            *(
                self._agents.policy_call(agent, {"task": task}, inline=inline)
                for agent, task in named
                if agent
            ),
        ]

    def policy_calls_of(self, plan: StartPlan, *, inline: bool) -> list[PolicyCall]:
        """As `policy_calls`, for one agent that code starts."""
        if plan.agent == FORK:
            return self.policy_calls(_FORK.name, {"prompt": plan.task}, inline=inline)
        arguments = {"agents": [{"agent": plan.agent, "task": plan.task}]}
        return self.policy_calls("spawn", arguments, inline=inline)

    async def _wait(self, agents: AgentsAtWork, call: ToolCall) -> ToolResult | PassEnd:
        arguments = call.arguments
        handles = arguments.get("handles")
        unknown = [handle for handle in handles or () if agents.place_of(handle) is None]
        if unknown:
            problem = f"You have started no agent with the handle {unknown[0]}."
            return self._result(call, problem, is_error=True)
        places = agents.untold if handles is None else [*map(agents.place_of, dict.fromkeys(handles))]
        found = await agents.wait(
            [place for place in places if place], arguments.get("until", "all"), arguments.get("timeout_s")
        )
        return found if isinstance(found, PassEnd) else self._waited(call, found)

    async def _tell(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult:
        handle, text = call.arguments["handle"], call.arguments["message"]
        heard = await self._heard(steps, handle, AgentTold(id=step.text, text=text))
        return self._result(call, _HEARD[heard].format(handle), is_error=heard != "taken")

    async def _stop(self, agents: AgentsAtWork, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult:
        handle, reason = call.arguments["handle"], bounded(call.arguments["reason"], MOST_SHOWN)
        place = agents.place_of(handle)
        if place is None:
            heard = await self._heard(steps, handle, AgentTold(id=step.text, text=reason, action="delete"))
        elif agents.has_ended(place):
            heard = "ended"
        else:
            await agents.delete(place, f"Deleted: {reason}")
            heard = "taken"
        told = (place,) if place and heard == "taken" else ()
        return self._result(call, _STOPPED[heard].format(handle), is_error=heard != "taken", told=told)

    async def _heard(self, steps: Steps, handle: str, news: AgentTold) -> Hearing:
        """What comes of news for the agent with a handle."""
        place = Place(f"{steps.turn.at}.{handle}")
        # A handle that a model has made up may look like the key of a step.
        if not place.is_started or place.step.place != place:
            return "unknown"
        text = bounded(news.text, self.settings.max_result_bytes)
        return await steps.tell(place, msgspec.structs.replace(news, text=text, by=self.settings.name))

    def _waited(self, call: ToolCall, found: Waited) -> ToolResult:
        more = {"timed_out": True} if found.timed_out else {}
        return self._result(call, as_json(found.entries, **more), told=found.told)

    def _result(self, call: ToolCall, content: str, **more: Any) -> ToolResult:
        if more.get("is_error"):  # it repeats what the model said
            content = bounded(content, MOST_SHOWN)
        return ToolResult(call_id=call.id, tool=call.name, content=content, **more)


class ExchangeSoFar(msgspec.Struct, frozen=True):
    """The messages between a node and its model, up to an answer with tool calls, and the results that
    these have so far: those of the calls before the one that is made."""

    messages: Sequence[Message]
    answer: LlmCall
    results: Sequence[Result]

    def of_fork(self, call: ToolCall, prompt: str) -> tuple[Message, ...]:
        """The messages of a fork: the prompt is the result of the very call."""
        known = {id(made): result for made, result in zip(self.answer.tool_calls, self.results, strict=False)}
        results = tuple(
            Result(made.id, made.name, prompt)
            if made is call
            else known.get(id(made), Result(made.id, made.name, NO_RESULT_YET))
            for made in self.answer.tool_calls
        )
        return (*self.messages, Assistant(self.answer.text, self.answer.tool_calls), Results(results))


def plans_of(tool: str, arguments: Mapping[str, Any]) -> list[StartPlan]:
    """What a spawn or a fork is to start, as far as its arguments are valid."""
    if tool == _FORK.name:
        return [
            StartPlan(FORK, str(arguments.get("prompt", "")), str(arguments.get("title", ""))[:_MOST_TITLE])
        ]
    agents = arguments.get("agents")
    return [
        StartPlan(
            str(one.get("agent")),
            str(one.get("task")),
            str(one.get("title", ""))[:_MOST_TITLE],
            budget=_limits(one.get("budget")),
        )
        for one in (agents if isinstance(agents, list) else ())
        if isinstance(one, dict)
    ]


def _limits(budget: Any) -> Mapping[str, float]:
    return budget if isinstance(budget, dict) else {}


C = TypeVar("C")


class StartingCall(CallDriver, Generic[C]):
    """A call that may start agents. It is durable: that they start is journaled, and they are steps of their
    own. ``calls`` are what makes calls of its kind."""

    is_durable = True

    def __init__(
        self,
        calls: C,
        agents: AgentsAtWork,
        exchange: ExchangeSoFar,
        steps: Steps,
        step: StepKey,
        call: ToolCall,
    ) -> None:
        super().__init__(call)
        self._calls = calls
        self._agents = agents
        self._exchange = exchange
        self._steps = steps
        self._step = step

    def exchange_of(self, prompt: str) -> Sequence[Message]:
        """The messages of a fork that the call starts."""
        return self._exchange.of_fork(self.call, prompt)

    def refusal(self, action: Refuse) -> NotRun:
        return refused(action)


class _StartCall(StartingCall[SpawnCalls]):
    """One spawn or fork."""

    # -- as it describes itself

    def problem(self, arguments: dict[str, Any]) -> str:
        # At this depth they are not offered, but a model may name one all the same.
        if is_too_deep := too_deep(self.call.name, self._steps.turn.depth, self._calls.max_depth):
            return is_too_deep
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def policy_calls(self, arguments: dict[str, Any]) -> Sequence[PolicyCall]:
        inline = not self._calls.settings.asks(self._steps.turn)
        return self._calls.policy_calls(self.call.name, arguments, inline=inline)

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # of others, none has
        return bool(self._steps.started_in(self._step))

    # -- effects

    async def run(self, arguments: dict[str, Any]) -> Returned | PassEnd:
        started = self._steps.started_in(self._step)
        # A crash may have torn the append of the starts: what is left of it is less than the whole call.
        if missing := plans_of(self.call.name, arguments)[len(started) :]:
            is_fork = self.call.name == _FORK.name
            by: Literal["fork", "spawn"] = "fork" if is_fork else "spawn"
            if refusal := await self._agents.start(self._step, missing, by, self.exchange_of):
                return Returned(refusal, is_error=True)
        started = self._steps.started_in(self._step)
        self._agents.go_on_below(self._step, self.exchange_of)
        entries = self._agents.entries([start.step for start in started])
        running = [msgspec.structs.replace(entry, status="running", result="") for entry in entries]
        return Returned(as_json(running))

    # -- for people

    def question(self, action: Ask) -> ApprovalRequired:
        plans = plans_of(self.call.name, action.arguments)
        number = "an agent" if len(plans) == 1 else f"{len(plans)} agents"
        what = "Start a fork" if self.call.name == _FORK.name else f"Start {number}"
        return self.approval(action, f"{what}\n{listed(action.arguments)}")
