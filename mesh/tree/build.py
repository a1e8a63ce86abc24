"""From a place in the plan to a node at work."""

from collections.abc import Callable

from mesh.config import Config
from mesh.llm.port import Llm
from mesh.mcp.toolbox import Toolbox
from mesh.tree.children import Child, Children
from mesh.tree.llm import LlmSettings, LlmWork
from mesh.tree.loop import Loop
from mesh.tree.node import Node, Work
from mesh.tree.parallel import Parallel
from mesh.tree.plan import Spot
from mesh.tree.sequential import Sequential
from mesh.tree.tool_call import ToolStep
from mesh.tree.turn import RunNode


def llm_node(config: Config, spot: Spot, llm: Llm, tools: ToolStep) -> Node:
    """The llm node at a place."""
    settings = LlmSettings(
        model=spot.node.model or config.llm.model,
        prompt=spot.prompt,
        max_iterations=config.limits.max_tool_iterations,
        max_tokens=config.llm.max_tokens,
        timeout_s=config.llm.timeout_s,
        can_exit_loop=spot.node.can_exit_loop,
    )
    return _node(spot, LlmWork(settings, llm, tools))


def tool_step(config: Config, spot: Spot, toolbox: Toolbox) -> ToolStep:
    """How the llm node at a place runs its tools."""
    return ToolStep(
        toolbox=toolbox,
        name=spot.node.name,
        asks=spot.asks,
        expire_after_s=config.approval_timeout_s,
        output_key=spot.node.output_key or "",
        max_result_bytes=config.limits.max_result_bytes,
    )


def composite_node(spot: Spot, run: Callable[[str], RunNode]) -> Node:
    """The node with children at a place; ``run`` gives the way to the node at a path."""
    children = Children([Child(c.node.name, run(c.path), c.reads_history) for c in spot.children])
    work: Work
    match spot.node.type:
        case "sequential":
            work = Sequential(children)
        case "parallel":
            work = Parallel(children, spot.node.on_error)
        case "loop":
            work = Loop(children, spot.node.max_iterations)
        case other:
            raise ValueError(f"{spot.node.name}: a node of type {other} has no children")
    return _node(spot, work)


def _node(spot: Spot, work: Work) -> Node:
    node = spot.node
    return Node(node.name, node.type, work, output_key=node.output_key, timeout_s=node.timeout_s)
