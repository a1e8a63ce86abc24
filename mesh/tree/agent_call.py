"""Calls of agents of the same config: an agent as a tool.

A called agent is a place below its caller that names the call (`StepKey.called_agent`). Everything that it
does is a step of its own, so its call needs no claim: after a crash, a pause or a restart it is run again
with what is known, and goes on. Its answer is recorded as the result of the call.

It gets the arguments of the call as its user message, and each of them as a placeholder beside the caller's
state. It sees none of the caller's messages, and its state ends with it: only its answer comes back.

An agent runs at the place of its call with the scopes of its caller, so that what it spends counts in every
budget above it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mesh.core.durable_call import Ask, Refuse
from mesh.core.events import AgentStarted, ApprovalRequired, ToolCall, ToolResult
from mesh.core.messages import ToolSpec, accepted_mark
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict
from mesh.mcp.schema import problems
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.runtime.failpoints import failpoint
from mesh.tree.calls import (
    CallDriver,
    CallSettings,
    NotRun,
    Returned,
    listed,
    refused,
    run_call,
    too_deep,
)
from mesh.tree.calls_for_policies import agent_call
from mesh.tree.children import not_ended
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import PassOutput, RunNode

_TASK: dict[str, Any] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What the agent is to do, in full."}},
    "required": ["task"],
    "additionalProperties": False,
}
USE_AGENT = "use_agent"
"""The tool that stands for all agents of a node (``offer_agents``)."""
_FORCED = "\n[It had to end here: the limit {} of the budget was reached.]"


class CallableAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of the config that a node may call. ``run`` continues a pass at its root. ``input_schema``
    None: it takes a ``task``."""

    name: str
    kind: str
    run: RunNode
    description: str = ""
    input_schema: dict[str, Any] | None = None
    destructive: bool = False
    reads_history: bool = False

    @property
    def spec(self) -> ToolSpec:
        """The agent as models see it."""
        return agent_spec(self.name, self.description, self.input_schema)

    def user_message(self, arguments: Mapping[str, Any]) -> str:
        """What the agent is told: the task, or all arguments as JSON if it takes others."""
        task = arguments.get("task")
        if len(arguments) == 1 and isinstance(task, str):
            return task
        return json.dumps(arguments, ensure_ascii=False)


def agent_spec(name: str, description: str, input_schema: dict[str, Any] | None) -> ToolSpec:
    """An agent of the config as models see it, where each agent is a tool of its own."""
    schema = _TASK if input_schema is None else input_schema
    return ToolSpec(name, description or f"Asks the agent {name}.", schema)


class AgentCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of the config that one node may call, by name. ``max_depth`` bounds how many agents call
    each other. ``are_checked``: the answers of the node are checked, so that no agent below it may end the
    turn. ``is_one_tool``: they are offered as ``use_agent``, instead of each as a tool, and take a
    ``task`` then, whatever their ``input_schema``."""

    agents: Mapping[str, CallableAgent]
    settings: CallSettings = CallSettings()
    max_depth: int = 5
    are_checked: bool = False
    is_one_tool: bool = False

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The agents as models see them."""
        denies, call = self.settings.gate.denies_always, self.policy_call
        agents = {name: agent for name, agent in self.agents.items() if not denies(call(agent, {}))}
        if not agents:
            return ()
        if self.is_one_tool:
            return (_use_agent(agents),)
        return tuple(agent.spec for agent in agents.values())

    def takes(self, call: ToolCall) -> bool:
        """Whether this call is for an agent."""
        if self.is_one_tool:
            return bool(self.agents) and call.name == USE_AGENT
        return call.name in self.agents

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """See `run_call`."""
        return await run_call(_AgentCall(self, steps, step, call), steps, step, call, self.settings)

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        agent = self.called(call.name, call.arguments)
        if agent is None:
            return f"There is no such agent. The agents are: {', '.join(sorted(self.agents))}."
        spec = _use_agent(self.agents) if self.is_one_tool else agent.spec
        found = problems(spec.input_schema, call.arguments)
        return f"Invalid arguments for {call.name}:\n{found}" if found else ""

    def policy_call(
        self, agent: CallableAgent, arguments: Mapping[str, Any], *, inline: bool = False
    ) -> PolicyCall:
        """A call, as policies see it."""
        who, node = self.settings.agent, self.settings.name
        destructive = agent.destructive
        return agent_call("agent", who, node, agent.name, arguments, destructive=destructive, inline=inline)

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        agent = self.called(call.name, call.arguments)
        if agent is None:
            return Verdict("ask", "", self.problems(call))
        return await self.settings.verdict(self.policy_call(agent, call.arguments), grants)

    def called(self, tool: str, arguments: Mapping[str, Any]) -> CallableAgent | None:
        """The agent that a call names."""
        return self.agents.get(str(arguments.get("agent")) if self.is_one_tool else tool)


class _AgentCall(CallDriver):
    """One call of an agent. It is durable: see the module."""

    is_durable = True

    def __init__(self, calls: AgentCalls, steps: Steps, step: StepKey, call: ToolCall) -> None:
        super().__init__(call)
        self._calls = calls
        self._steps = steps
        self._step = step

    # -- as it describes itself

    def problem(self, arguments: dict[str, Any]) -> str:
        # At this depth no agent is offered, but a model may name one all the same.
        if is_too_deep := too_deep(self.call.name, self._steps.turn.depth, self._calls.max_depth):
            return is_too_deep
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def policy_call(self, arguments: dict[str, Any]) -> PolicyCall:
        inline = not self._calls.settings.asks(self._steps.turn)
        return self._calls.policy_call(self._agent(arguments), arguments, inline=inline)

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # of others, none has
        places = (self._step.called_agent(name) for name in self._calls.agents)
        return any(self._steps.known(place.step, AgentStarted) for place in places)

    # -- effects

    async def run(self, arguments: dict[str, Any]) -> Returned | PassEnd:
        agent = self._agent(arguments)
        given = _without_agent(arguments) if self._calls.is_one_tool else arguments
        output = await run_agent(
            agent,
            self._steps,
            self._step,
            given,
            self._calls.settings,
            may_end_turn=not self._calls.are_checked,
        )
        if output.status == "deleted":
            return Returned(output.text, is_error=True)
        if output.status not in ("completed", "failed"):
            return not_ended(output)
        text = output.text + (_FORCED.format(output.forced) if output.forced else "")
        text += accepted_mark(output.invalid)
        return Returned(
            text,
            is_error=output.status == "failed",
            forced=output.forced,
            output=output.output,
            invalid=output.invalid,
        )

    # -- for people

    def question(self, action: Ask) -> ApprovalRequired:
        agent = self._agent(action.arguments)
        about = f" ({agent.description.strip().splitlines()[0]})" if agent.description.strip() else ""
        return self.approval(action, f"Call the agent {agent.name}{about}\n{listed(action.arguments)}")

    def refusal(self, action: Refuse) -> NotRun:
        if self.has_begun and action.problem:
            return NotRun(f"{action.problem}\n{self.call.name} had begun, and does not go on.")
        return refused(action)

    def _agent(self, arguments: Mapping[str, Any]) -> CallableAgent:
        agent = self._calls.called(self.call.name, arguments)
        assert agent is not None  # a call of no agent has a `problem`, so that it is never made
        return agent


async def run_agent(
    agent: CallableAgent,
    steps: Steps,
    step: StepKey,
    given: Mapping[str, Any],
    settings: CallSettings,
    message: str = "",
    *,
    may_end_turn: bool,
    validates: bool = False,
    conceals: bool = False,
) -> PassOutput:
    """Runs an agent below the step that calls it, with what it is given. ``message`` is what it is told, if
    that is not made of what it is given. ``may_end_turn``: the call alone does not forbid it, see
    `PassInput`; ``conceals`` as there. ``validates``: it checks an answer, so that what is destructive waits
    for a person unless the config says otherwise in so many words. Raises `Superseded`, `Unavailable`."""
    place, turn = step.called_agent(agent.name), steps.turn
    path = (*(turn.agent_path or (settings.root,)), agent.name)
    started = steps.known(place.step, AgentStarted) or steps.record(
        place.step, AgentStarted(name=agent.name, kind=agent.kind, agent_path=path)
    )
    failpoint("agent.called")
    await steps.send_if_many()
    state = {**turn.state, **{key: _as_text(value) for key, value in given.items()}}
    said = settings.approvals.said_in(turn)
    below = steps.below(place, state, 0, history=agent.reads_history)
    output = await steps.run_below(
        agent.run,
        msgspec.structs.replace(
            below,
            user_message=message or agent.user_message(given),
            asks=True if validates and said is None else said,
            at_once=turn.at_once or settings.approvals.at_once,
            may_end_turn=turn.may_end_turn and may_end_turn,
            agent_path=path,
            started_at=started.time,
            conceals=turn.conceals or conceals,
        ),
    )
    failpoint("agent.returned")
    return output


def _use_agent(agents: Mapping[str, CallableAgent]) -> ToolSpec:
    """One tool for all agents."""
    about = "\n".join(f"{agent.name}: {agent.spec.description}" for agent in agents.values())
    properties = {"agent": {"type": "string", "enum": sorted(agents)}, **_TASK["properties"]}
    schema = {**_TASK, "properties": properties, "required": ["agent", "task"]}
    return ToolSpec(USE_AGENT, f"Asks one of these agents:\n{about}", schema)


def _without_agent(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "agent"}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
