"""The models of the config, as a Python file writes them: functions, agents and types are given as such."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from pydantic import Field, PrivateAttr

from mesh.config.model import A2aAgent, AgentNode, Config, ExitCondition, McpServer, NodeType, Validator
from mesh.config.values import HostName, Text, ToolName

Function = Callable[..., Any]
AnyType = type[Any]
Schema = AnyType | dict[str, Any] | Text
"""A type of the file, a JSON Schema, or what a config may name: ``schemas/order.json``."""


class Expression(NamedTuple):
    """The expression that made an object: its file, and the positions of its code there."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int


class Agent(AgentNode):
    """A node of the tree, or an agent that others may call: the keys are those of a node in a config.

    In ``tools``, ``tool``, ``validate`` and ``exit_when`` functions of the file stand for themselves, in
    ``agents``, ``validate`` and ``exit_when`` other agents do, and in the schemas types such as a model of
    pydantic. Names and mappings are possible everywhere, as in a config.
    """

    # Types that are wider than those of the config, and sequences, so that lists are no errors in an editor.
    type: NodeType = "llm"
    agents: "Sequence[Agent | Text]" = ()  # type: ignore[assignment]
    a2a: Sequence[A2aAgent] = ()  # type: ignore[assignment]
    tools: Sequence[Function | Text] | None = None  # type: ignore[assignment]
    tool: Function | ToolName | None = None  # type: ignore[assignment]
    input_schema: Schema | None = None  # type: ignore[assignment]
    output_schema: Schema | None = None  # type: ignore[assignment]
    validators: "Sequence[Agent | Validator | Function]" = Field(  # type: ignore[assignment]
        default=(), alias="validate"
    )
    exit_when: "Agent | ExitCondition | AnyType | Function | None" = None  # type: ignore[assignment]

    _expression: Expression | None = PrivateAttr(None)

    def model_post_init(self, context: Any, /) -> None:
        self._expression = expression_of_caller()

    @property
    def expression(self) -> Expression | None:
        """Where it was written."""
        return self._expression


class Settings(Config):
    """The keys of a config besides ``agent``. The agent's name is the default of ``name``."""

    allowed_hosts: Sequence[HostName] = ()  # type: ignore[assignment]
    mcp_servers: Sequence[McpServer | dict[str, Any]] = ()  # type: ignore[assignment]  # python: is a path here
    a2a: Sequence[A2aAgent] = ()  # type: ignore[assignment]
    agents: Sequence[Agent] = ()  # type: ignore[assignment]

    _expression: Expression | None = PrivateAttr(None)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._expression = expression_of_caller()

    @property
    def expression(self) -> Expression | None:
        """Where it was written."""
        return self._expression


def expression_of_caller() -> Expression | None:
    """Returns the expression outside of pydantic and this file that is being evaluated."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or _is_pydantic(frame)):
        frame = frame.f_back
    return None if frame is None else expression_at(frame, frame.f_lasti)


def expression_at(frame: FrameType, instruction: int) -> Expression | None:
    """Returns the expression that an instruction of a frame evaluates."""
    positions = [*frame.f_code.co_positions()][instruction // 2]
    if any(each is None for each in positions):
        return None
    return Expression(frame.f_code.co_filename, *(each or 0 for each in positions))


def _is_pydantic(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "pydantic"
