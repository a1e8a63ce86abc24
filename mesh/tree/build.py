"""From a place in the plan to a node at work."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch

from mesh.a2a.client.port import RemoteAgent
from mesh.config.model import A2aAgent, Config
from mesh.llm.port import Llm
from mesh.mcp.port import ToolSession
from mesh.mcp.toolbox import Toolbox
from mesh.tree.a2a import A2aWork
from mesh.tree.ask_user import ASK_USER, QuestionCalls
from mesh.tree.calls import CallSettings
from mesh.tree.children import Child, Children
from mesh.tree.llm import EXIT_LOOP, LlmSettings, LlmWork
from mesh.tree.loop import Loop
from mesh.tree.node import Node, Work
from mesh.tree.parallel import Parallel
from mesh.tree.plan import PlannedNode
from mesh.tree.remote_call import PREFIX, AgentTool, RemoteCalls
from mesh.tree.sequential import Sequential
from mesh.tree.tool_call import ToolCalls
from mesh.tree.tools import Tools
from mesh.tree.turn import RunNode

AgentFor = Callable[[A2aAgent], RemoteAgent]
"""How to reach an agent of the config."""


def llm_node(config: Config, planned: PlannedNode, llm: Llm, tools: Tools) -> Node:
    """The llm node at a place."""
    settings = LlmSettings(
        model=planned.node.model or config.llm.model,
        prompt=planned.prompt,
        max_iterations=config.limits.max_tool_iterations,
        max_llm_calls=config.limits.max_llm_calls,
        max_tool_calls=config.limits.max_tool_calls,
        max_tokens=config.llm.max_tokens,
        timeout_s=config.llm.timeout_s,
        can_exit_loop=planned.node.can_exit_loop,
    )
    return _node(planned, LlmWork(settings, llm, tools))


def tools_of(config: Config, planned: PlannedNode, toolbox: Toolbox, agent_for: AgentFor) -> Tools:
    """What the llm node at a place may call, and how."""
    settings = _call_settings(config, planned)
    mcp = ToolCalls(toolbox=toolbox, settings=settings)
    remote = _remote(config, planned, agents_of(config, planned), agent_for)
    return Tools(mcp, remote, QuestionCalls(settings) if planned.node.can_ask_user else None)


def remote_of(config: Config, planned: PlannedNode, agent_for: AgentFor) -> RemoteCalls:
    """How the a2a node at a place talks to its agent."""
    return _remote(config, planned, [planned.node.as_agent()], agent_for)


def a2a_node(planned: PlannedNode, remote: RemoteCalls) -> Node:
    """The a2a node at a place."""
    (tool,) = remote.agents.values()
    return _node(planned, A2aWork(planned.prompt, tool, remote))


def reach(agent: A2aAgent) -> RemoteAgent:
    """`AgentFor` over HTTP."""
    from mesh.a2a.client.agent import (
        HttpAgent,  # half a second and 30 MB, for those few nodes that ask others
    )

    return HttpAgent(
        agent.name, agent.url, agent.card_url, agent.timeout_s, harmless=agent.is_harmless, key=agent.key
    )


def agents_of(config: Config, planned: PlannedNode) -> list[A2aAgent]:
    """The other agents that a node may ask: its own, and the shared ones that its ``tools`` allow."""
    node = planned.node
    allowed = node.tools
    shared = [
        agent
        for agent in config.a2a
        if allowed is None or any(fnmatch(f"{PREFIX}{agent.name}", pattern) for pattern in allowed)
    ]
    return [*shared, *node.a2a]


def offered(planned: PlannedNode) -> list[str] | None:
    """Which tools of MCP servers the node at a place may use: names or globs, None for all."""
    tools = planned.node.tools
    return None if tools is None else [name for name in tools if not name.startswith(PREFIX)]


def toolbox_of(config: Config, planned: PlannedNode, sessions: Sequence[ToolSession]) -> Toolbox:
    """The tools of MCP servers that the llm node at a place may use. Not started."""
    return Toolbox(
        sessions,
        offered(planned),
        reserved=reserved(agents_of(config, planned)),
        max_bytes=config.limits.max_tools_bytes,
    )


def reserved(agents: Iterable[A2aAgent]) -> dict[str, str]:
    """The names that no tool of an MCP server may have where these agents may be asked, and whose they are.

    The built-in tools are reserved also where a node does not have them: whether a config is right must not
    depend on another key of it."""
    built_in = {spec.name: "a built-in tool" for spec in (ASK_USER, EXIT_LOOP)}
    return built_in | {f"{PREFIX}{agent.name}": f"the agent {agent.name}" for agent in agents}


def _remote(
    config: Config, planned: PlannedNode, agents: Sequence[A2aAgent], agent_for: AgentFor
) -> RemoteCalls:
    tools = [AgentTool(each.name, agent_for(each), each.description, each.destructive) for each in agents]
    return RemoteCalls(agents={tool.tool: tool for tool in tools}, settings=_call_settings(config, planned))


def _call_settings(config: Config, planned: PlannedNode) -> CallSettings:
    return CallSettings(
        name=planned.node.name,
        output_key=planned.node.output_key or "",
        asks=planned.asks,
        expire_after_s=config.approval_timeout_s,
        max_result_bytes=config.limits.max_result_bytes,
    )


def composite_node(planned: PlannedNode, run: Callable[[str], RunNode]) -> Node:
    """The node with children at a place; ``run`` gives the way to the node at a path."""
    children = Children([Child(c.node.name, run(c.path), c.reads_history) for c in planned.children])
    work: Work
    match planned.node.type:
        case "sequential":
            work = Sequential(children)
        case "parallel":
            work = Parallel(children, planned.node.on_error)
        case "loop":
            work = Loop(children, planned.node.max_iterations)
        case other:
            raise ValueError(f"{planned.node.name}: a node of type {other} has no children")
    return _node(planned, work)


def _node(planned: PlannedNode, work: Work) -> Node:
    node = planned.node
    return Node(node.name, node.type, work, output_key=node.output_key, timeout_s=node.timeout_s)
