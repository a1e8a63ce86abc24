"""The models of the config, as a Python file writes them: functions, agents and types are given as such."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, Any

from pydantic import Field, PlainValidator, PrivateAttr
from pydantic_core import PydanticCustomError

from mesh.config.call_lines import Expression, expression_at
from mesh.config.model import A2aAgent, AgentNode, Config, ExitCondition, McpServer, NodeType, Validator
from mesh.config.values import HostName

Function = Callable[..., Any]
AnyType = type[Any]
Keys = dict[str, Any]
"""A mapping, as in a config. It is checked with the config."""
Schema = AnyType | Keys | str
"""A type of the file, a JSON Schema, or what a config may name: ``schemas/order.json``."""


def _one_of(expected: str, is_one: Callable[[Any], bool]) -> PlainValidator:
    """One message for what may be of several types, of which pydantic would tell each."""

    def checked(value: Any) -> Any:
        if is_one(value):
            return value
        raise PydanticCustomError("object", f"expected {expected}")

    return PlainValidator(checked)


AN_AGENT = _one_of("an Agent, or the name of one", lambda value: isinstance(value, Agent | str))
A_TOOL = _one_of(
    "a function with @tool, or its name", lambda value: callable(value) or isinstance(value, str)
)
A_SCHEMA = _one_of(
    "a type, a JSON Schema, or the path of one", lambda value: isinstance(value, type | dict | str)
)
A_VALIDATOR = _one_of(
    "a function with @check, an Agent or a Validator",
    lambda value: callable(value) or isinstance(value, Agent | Validator | dict),
)
A_CONDITION = _one_of(
    "a function with @check, an Agent, a type or an ExitCondition",
    lambda value: callable(value) or isinstance(value, Agent | ExitCondition | dict),
)
A_SERVER = _one_of("an McpServer, or its keys", lambda value: isinstance(value, McpServer | dict))


class Agent(AgentNode):
    """A node of the tree, or an agent that others may call: the keys are those of a node in a config.

    In ``tools``, ``tool``, ``validate`` and ``exit_when`` functions of the file stand for themselves, in
    ``agents``, ``validate`` and ``exit_when`` other agents do, and in the schemas types such as a model of
    pydantic. Names and mappings are possible everywhere, as in a config.
    """

    # Types that are wider than those of the config, and sequences, so that lists are no errors in an editor.
    type: NodeType = "llm"
    agents: "Sequence[Annotated[Agent | str, AN_AGENT]]" = ()  # type: ignore[assignment]
    a2a: Sequence[A2aAgent] = ()  # type: ignore[assignment]
    tools: Sequence[Annotated[Function | str, A_TOOL]] | None = None  # type: ignore[assignment]
    tool: Annotated[Function | str, A_TOOL] | None = None  # type: ignore[assignment]
    input_schema: Annotated[Schema, A_SCHEMA] | None = None  # type: ignore[assignment]
    output_schema: Annotated[Schema, A_SCHEMA] | None = None  # type: ignore[assignment]
    validators: "Sequence[Annotated[Agent | Validator | Function | Keys, A_VALIDATOR]]" = Field(  # type: ignore[assignment]
        default=(), alias="validate"
    )
    exit_when: "Annotated[Agent | ExitCondition | Function | AnyType | Keys, A_CONDITION] | None" = None  # type: ignore[assignment]

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
    mcp_servers: Sequence[Annotated[McpServer | Keys, A_SERVER]] = ()  # type: ignore[assignment]
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


def _is_pydantic(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "pydantic"
