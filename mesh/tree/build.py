"""Builds the nodes of a tree: from the plan of a node to a node that runs.

To add a type of node, add a case to `build_node`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any

from msgspec.structs import replace

from mesh.a2a.client.port import RemoteAgent
from mesh.config.cross_checks import BUILT_IN_TOOLS, PYTHON_TOOL, SPAWN_TOOLS
from mesh.config.custom_policy import custom_of
from mesh.config.model import A2aAgent, AgentNode, Config, ExitCondition, Validator
from mesh.config.node_policies import policy_of
from mesh.core.messages import AGENT_TOOL_PREFIX, ToolSpec
from mesh.core.places import ROOT
from mesh.llm.parameters import Parameters
from mesh.llm.port import Llm
from mesh.llm.prices import Prices
from mesh.llm.schema_forms import as_result
from mesh.mcp.port import ToolSession
from mesh.mcp.toolbox import Toolbox
from mesh.python.interpreter import PythonLimits
from mesh.python.proven import proven_interpreter
from mesh.tree.a2a import A2aWork
from mesh.tree.agent_call import AgentCalls, CallableAgent
from mesh.tree.agents_at_work import StartableAgents
from mesh.tree.ask_user import QuestionCalls
from mesh.tree.calls import NO_CALLS, CallSettings, NodeCalls
from mesh.tree.children import Child, Children
from mesh.tree.configured_limits import limits_of, limits_of_turn, limits_schema, unpriced_models
from mesh.tree.gate import Gate
from mesh.tree.llm import COMPLETE_TASK, EXIT_LOOP, RETURN_TO_USER, LlmSettings, LlmWork, Tools
from mesh.tree.loop import Loop
from mesh.tree.map import Map, MapSettings
from mesh.tree.model_call import ModelCalls, ModelSettings
from mesh.tree.node import Node, Work
from mesh.tree.parallel import Parallel
from mesh.tree.plan import PlannedNode, callable_agents
from mesh.tree.python_calls import PythonCalls
from mesh.tree.remote_call import AgentTool, RemoteCalls
from mesh.tree.sequential import Sequential
from mesh.tree.spawn_calls import SpawnCalls
from mesh.tree.tool import ToolWork
from mesh.tree.tool_call import ToolCalls
from mesh.tree.turn import RunNode
from mesh.tree.validation import AnswerChecks
from mesh.tree.validators import (
    VERDICT,
    AgentValidator,
    AnswerValidator,
    CheckValidator,
    PersonValidator,
    SchemaValidator,
)

AgentFor = Callable[[A2aAgent], RemoteAgent]
"""Makes the client of another agent that the config names."""


@dataclass(frozen=True)
class Environment:
    """What nodes get from the process that runs them. ``llm_for`` gives the provider of a model, ``child``
    the way to the node with a node path."""

    sessions: Sequence[ToolSession]
    llm_for: Callable[[str], Llm]
    agent_for: AgentFor
    child: Callable[[str], RunNode]


@dataclass(frozen=True)
class BuiltNode:
    """A node that runs, and what it may call. Its ``toolbox``, if it has one, is to be started and closed."""

    node: Node
    calls: NodeCalls = NO_CALLS
    toolbox: Toolbox | None = None


def build_node(config: Config, planned: PlannedNode, environment: Environment) -> BuiltNode:
    """The node that a plan describes."""
    match planned.node.type:
        case "llm":
            return _llm_node(config, planned, environment)
        case "a2a":
            return _a2a_node(config, planned, environment)
        case "tool":
            return _tool_node(config, planned, environment)
        case "sequential":
            return _composite(config, planned, Sequential(_children(planned, environment)))
        case "parallel":
            return _composite(
                config, planned, Parallel(_children(planned, environment), planned.node.on_error)
            )
        case "loop":
            return _loop(config, planned, environment)
        case "map":
            return _composite(config, planned, _map(config, planned, environment))
        case "agent":
            raise AssertionError("a reference to an agent is not a node")


def _llm_node(config: Config, planned: PlannedNode, environment: Environment) -> BuiltNode:
    node, model = planned.node, planned.node.model or config.llm.model
    toolbox = Toolbox(
        environment.sessions,
        offered(planned),
        reserved=reserved(agents_of(config, planned), node.agents, tools_for_agents(node)),
        checks=checks_of(config, planned),
        max_bytes=config.limits.max_tools_bytes,
    )
    call_settings = _call_settings(config, planned)
    agents = _agent_calls(config, planned, call_settings, environment)
    schema = output_schema(config, planned)
    tools = Tools(
        ToolCalls(toolbox=toolbox, settings=call_settings, agents=tuple(spec.name for spec in agents.specs)),
        _remote_calls(config, planned, agents_of(config, planned), environment),
        agents,
        _question_calls(node, call_settings),
        _ending_tools(node, schema),
        _spawn_calls(config, planned, agents),
        _python_calls(config, planned, call_settings),
        _startable(planned, agents, environment),
    )
    limits = config.limits
    settings = LlmSettings(
        prompt=planned.prompt,
        # Where the node's own budget bounds its model calls, the budget ends them: it says so, and a person
        # may raise it. What is left is the bound of the turn.
        max_iterations=limits.max_llm_calls if node.budget.max_llm_calls else limits.max_tool_iterations,
        max_tool_calls=config.limits.max_tool_calls,
        max_parallel_calls=limits.max_parallel_calls,
    )
    prices = Prices(config.llm.prices)
    prices.prepare(model)
    model_settings = ModelSettings(
        model=model,
        max_tokens=node.parameters.max_tokens or config.llm.max_tokens,
        parameters=Parameters(**node.parameters.model_dump(exclude={"max_tokens"})),
        timeout_s=config.llm.timeout_s,
        max_llm_calls=config.limits.max_llm_calls,
        max_tool_calls=config.limits.max_tool_calls,
        on_limit=config.budget.on_limit,
        warn_at=config.budget.warn_at,
        name=node.name,
        root_agent=config.tree.name,
        expire_after_s=config.approval_timeout_s,
        output_schema=schema,
        are_drafts=(schema is not None or node.is_checked) and not node.show_drafts,
    )
    model_calls = ModelCalls(model_settings, environment.llm_for, prices.nusd)
    unchecked = replace(model_settings, output_schema=None, are_drafts=False)
    may_fork = node.spawn or node.python
    of_forks = ModelCalls(unchecked, environment.llm_for, prices.nusd) if may_fork else None
    validators = Validators(config, planned, environment, toolbox, schema)
    work = LlmWork(settings, model_calls, tools, validators.checks, of_forks)
    return BuiltNode(_node(config, planned, work), tools, toolbox)


def _loop(config: Config, planned: PlannedNode, environment: Environment) -> BuiltNode:
    node, children = planned.node, _children(planned, environment)
    if node.exit_when is None:
        return _composite(config, planned, Loop(children, node.max_iterations))
    toolbox = Toolbox(environment.sessions, [], checks=checks_of(config, planned))
    validators = Validators(config, planned, environment, toolbox, None)
    work = Loop(children, node.max_iterations, validators.exit_condition(node.exit_when))
    return BuiltNode(_node(config, planned, work), toolbox=toolbox)


def _map(config: Config, planned: PlannedNode, environment: Environment) -> Map:
    node, (child,) = planned.node, planned.children
    assert node.over is not None  # checked by `mesh.config.cross_checks`
    settings = MapSettings(
        name=node.name,
        over=node.over,
        most=node.most,
        on_error=node.on_error,
        kind=child.node.type,
        root=config.tree.name,
        reads_list=node.over in child.reads,
        with_status=node.with_status,
    )
    return Map(_children(planned, environment), settings)


class Validators:
    """Makes what checks the answers of one node; ``schema`` is theirs, if they have one."""

    def __init__(
        self,
        config: Config,
        planned: PlannedNode,
        environment: Environment,
        toolbox: Toolbox,
        schema: dict[str, Any] | None,
    ) -> None:
        self._config = config
        self._planned = planned
        self._environment = environment
        self._toolbox = toolbox
        self._schema = schema
        self._settings = _call_settings(config, planned)

    @property
    def checks(self) -> AnswerChecks | None:
        """The checks of an llm node; None if its answers count as they are."""
        node = self._planned.node
        if self._schema is None and not node.validators:
            return None
        first: list[AnswerValidator] = []
        if self._schema is not None:
            first = [SchemaValidator(self._schema, is_draft=not node.show_drafts)]
        return AnswerChecks(
            validators=[*first, *map(self._validator, node.validators)],
            settings=self._settings,
            schema=self._schema,
            max_runs=node.max_runs,
            on_invalid=node.on_invalid,
        )

    def exit_condition(self, condition: ExitCondition) -> AnswerValidator:
        """What ends a loop."""
        if condition.accepted is not None:
            return SchemaValidator(condition.accepted)
        return self._condition(condition)

    def _validator(self, validator: Validator) -> AnswerValidator:
        return (
            PersonValidator(self._settings, self._schema)
            if validator.person
            else self._condition(validator, is_draft=not self._planned.node.show_drafts)
        )

    def _condition(self, condition: Validator | ExitCondition, *, is_draft: bool = False) -> AnswerValidator:
        if condition.check is not None:
            return CheckValidator(condition.check, self._toolbox, self._settings, is_draft=is_draft)
        roots = {root.path: root for root in callable_agents(self._config)}
        assert condition.agent is not None  # checked by `mesh.config.cross_checks`
        agent = _callable_agent(roots[condition.agent], self._environment)
        return AgentValidator(agent, self._settings, self._config.budget.max_depth, is_draft=is_draft)


def _a2a_node(config: Config, planned: PlannedNode, environment: Environment) -> BuiltNode:
    calls = _remote_calls(config, planned, [planned.node.as_agent()], environment)
    (tool,) = calls.agents.values()
    return BuiltNode(_node(config, planned, A2aWork(planned.prompt, tool, calls)), calls)


def _tool_node(config: Config, planned: PlannedNode, environment: Environment) -> BuiltNode:
    node = planned.node
    assert node.tool is not None  # checked by `mesh.config.cross_checks`
    toolbox = Toolbox(
        environment.sessions,
        offered(planned),
        reserved=reserved(agents_of(config, planned)),
        checks={node.tool: _location_of(config, node, "tool")} if _validates(config, planned) else {},
    )
    calls = ToolCalls(toolbox=toolbox, settings=_call_settings(config, planned), for_model=False)
    return BuiltNode(_node(config, planned, ToolWork(node.name, node.tool, node.args, calls)), calls, toolbox)


def _composite(config: Config, planned: PlannedNode, work: Work) -> BuiltNode:
    return BuiltNode(_node(config, planned, work))


def _children(planned: PlannedNode, environment: Environment) -> Children:
    return Children(
        [
            Child(child.node.name, environment.child(child.path), child.reads_history)
            for child in planned.children
        ]
    )


def _remote_calls(
    config: Config, planned: PlannedNode, agents: Sequence[A2aAgent], environment: Environment
) -> RemoteCalls:
    tools = [
        AgentTool(agent.name, environment.agent_for(agent), agent.description, agent.destructive)
        for agent in agents
    ]
    return RemoteCalls(
        agents={tool.tool: tool for tool in tools},
        settings=_call_settings(config, planned),
        max_depth=config.budget.max_depth,
        refuses_unpriced=config.budget.unpriced_peers == "refuse",
    )


def _agent_calls(
    config: Config, planned: PlannedNode, settings: CallSettings, environment: Environment
) -> AgentCalls:
    roots = {root.path: root for root in callable_agents(config)}
    agents = [_callable_agent(roots[agent.name], environment) for agent in planned.node.agents]
    return AgentCalls(
        agents={agent.name: agent for agent in agents},
        settings=settings,
        max_depth=config.budget.max_depth,
        are_checked=output_schema(config, planned) is not None or planned.node.is_checked,
        is_one_tool=planned.node.offer_agents == "use_agent",
    )


def _question_calls(node: AgentNode, settings: CallSettings) -> QuestionCalls | None:
    asks = node.can_ask_user
    return QuestionCalls(settings, asks.at_most, asks.declined) if asks else None


def _spawn_calls(config: Config, planned: PlannedNode, agents: AgentCalls) -> SpawnCalls | None:
    spawn = planned.node.spawn
    if spawn is None:
        return None
    return SpawnCalls(
        agents,
        forks=spawn.fork,
        review=spawn.review == "ask",
        unwaited=spawn.unwaited,
        limits=limits_schema(with_money=not unpriced_models(config)),
    )


def _python_calls(config: Config, planned: PlannedNode, settings: CallSettings) -> PythonCalls | None:
    node = planned.node
    if not node.python:
        return None
    return PythonCalls(
        settings=settings,
        interpreter=partial(proven_interpreter, python_limits(config)),
        max_depth=config.budget.max_depth,
        review=node.spawn is not None and node.spawn.review == "ask",
    )


def python_limits(config: Config) -> PythonLimits:
    """What the code of one call of ``python`` may use."""
    limits = config.limits
    return PythonLimits(
        time_s=limits.python_time_s,
        cpu_s=limits.python_cpu_s,
        memory=limits.python_memory_bytes,
        scratch=limits.python_scratch_bytes,
        output=limits.python_output_bytes,
        processes=limits.python_processes,
    )


def _startable(planned: PlannedNode, agents: AgentCalls, environment: Environment) -> StartableAgents | None:
    """What starts at a node, by whichever of its tools."""
    node = planned.node
    if node.spawn is None and not node.python:
        return None
    forks = node.python or (node.spawn is not None and node.spawn.fork)
    return StartableAgents(
        agents=agents.agents if node.spawn else {},
        fork=environment.child(planned.path) if forks else None,
        settings=agents.settings,
    )


def tools_for_agents(node: AgentNode) -> tuple[str, ...]:
    """The tools that start agents which the mesh gives to this node, and not to each."""
    return (*(SPAWN_TOOLS if node.spawn else ()), *((PYTHON_TOOL,) if node.python else ()))


def _callable_agent(root: PlannedNode, environment: Environment) -> CallableAgent:
    node = root.node
    return CallableAgent(
        name=node.name,
        kind=node.type,
        run=environment.child(root.path),
        description=node.description,
        destructive=node.destructive,
        reads_history=root.reads_history,
        input_schema=node.input_schema,
    )


def _ending_tools(node: AgentNode, schema: dict[str, Any] | None) -> list[ToolSpec]:
    """The tools of an llm node that end something; ``schema`` is that of its answers."""
    tools = (
        (EXIT_LOOP, node.can_exit_loop),
        (_answering(COMPLETE_TASK, schema), node.can_complete_task),
        (_answering(RETURN_TO_USER, schema), node.can_return_to_user),
    )
    return [tool for tool, is_given in tools if is_given]


def _answering(tool: ToolSpec, schema: dict[str, Any] | None) -> ToolSpec:
    return tool if schema is None else ToolSpec(tool.name, tool.description, as_result(schema))


def _call_settings(config: Config, planned: PlannedNode) -> CallSettings:
    return CallSettings(
        name=planned.node.name,
        agent=planned.agent_of(config),
        gate=Gate(policy_of(config, planned.node.name), custom_of(config)),
        root=config.tree.name,
        output_key=planned.node.output_key or "",
        approvals=planned.approvals,
        expire_after_s=config.approval_timeout_s,
        max_result_bytes=config.limits.max_result_bytes,
        on_limit=config.budget.on_limit,
    )


def _node(config: Config, planned: PlannedNode, work: Work) -> Node:
    node = planned.node
    limits = limits_of_turn(config) if planned.path == ROOT.path else limits_of(node.budget)
    return Node(
        node.name, node.type, work, output_key=node.output_key, timeout_s=node.timeout_s, limits=limits
    )


def reach(agent: A2aAgent) -> RemoteAgent:
    """`AgentFor` over HTTP."""
    # Imported here: it costs half a second of CPU and 30 MB, and few nodes call other agents.
    from mesh.a2a.client.agent import HttpAgent

    return HttpAgent(
        agent.name, agent.url, agent.card_url, agent.timeout_s, harmless=agent.is_harmless, key=agent.key
    )


def agents_of(config: Config, planned: PlannedNode) -> list[A2aAgent]:
    """The other agents that an llm node may call: its own, and the shared ones that its ``tools`` allow."""
    allowed = planned.node.tools
    shared = [
        agent
        for agent in config.a2a
        if allowed is None or any(fnmatch(f"{AGENT_TOOL_PREFIX}{agent.name}", pattern) for pattern in allowed)
    ]
    return [*shared, *planned.node.a2a]


def checks_of(config: Config, planned: PlannedNode) -> dict[str, str]:
    """The names of the functions that check the answers of a node, or end a loop, each with where the config
    names it."""
    names = {each.check for each in planned.node.conditions}
    return {name: config.location(*loc) for loc, name in config.checks() if name in names}


def output_schema(config: Config, planned: PlannedNode) -> dict[str, Any] | None:
    """What the answers of a node have to fit. An agent that validates has a schema, whether or not the config
    gives it one."""
    node = planned.node
    if node.output_schema is None and node.type == "llm" and _validates(config, planned):
        return VERDICT
    return node.output_schema


def _validates(config: Config, planned: PlannedNode) -> bool:
    """Whether the node is the root of an agent that checks answers, or ends loops."""
    return planned.path in config.validating_agents


def _location_of(config: Config, node: AgentNode, key: str) -> str:
    return next(config.location(*loc, key) for loc, each in config.nodes() if each.name == node.name)


def offered(planned: PlannedNode) -> list[str] | None:
    """The tools of MCP servers that an llm or tool node may call: names or globs, None for all."""
    if planned.node.tool is not None:
        return [planned.node.tool]
    tools = planned.node.tools
    return None if tools is None else [name for name in tools if not name.startswith(AGENT_TOOL_PREFIX)]


def reserved(
    agents: Iterable[A2aAgent], called: Iterable[AgentNode] = (), own: Iterable[str] = ()
) -> dict[str, str]:
    """The names that no tool of an MCP server may have beside these agents, and whose names they are.
    ``called`` are agents of the config that the node calls, ``own`` are tools that the mesh gives to this
    node and not to others.

    The names of built-in tools are reserved also where a node does not have these tools: one key of a config
    must not decide whether another one is right.
    """
    names = dict.fromkeys((*BUILT_IN_TOOLS, *own), "a built-in tool")
    names |= {agent.name: f"the agent {agent.name}" for agent in called}
    return names | {f"{AGENT_TOOL_PREFIX}{agent.name}": f"the agent {agent.name}" for agent in agents}
