"""What goes beside MCP's own fields, in ``_meta``: what a server is told with a call, and what it says of its
tools. Pure.

Keys of ``_meta`` have a prefix that says whose they are; one without a second label is not reserved for MCP
(specification 2026-07-28, basic, "_meta"). ``traceparent`` is the exception to it: OpenTelemetry's own key.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from mesh.core.execution import ExecutionContext
from mesh.policy.policy_call import Risk

EXECUTION = "mesh/execution"
"""The key of the execution context, an object with the fields of `ExecutionContext` that are set."""
ABOUT = "mesh"
"""Of a tool: the key of what policies and previews need to know of its arguments."""
TRACEPARENT = "traceparent"
ASKS = "mesh/asks"
"""Of a result: what the tool asks of the node that called it, a list of texts. The call is made again with
the answers."""
IS_CHECK = "mesh/check"
"""Of a tool: whether it is a check, which only the mesh calls."""
CHECKED_BY = "mesh/checkedBy"
"""Of a tool: the name of the tool that tells what came of a call of it."""


class ToolMeta(NamedTuple):
    """What a server says of a tool in its ``_meta``: see `mesh.mcp.port.Tool`."""

    is_check: bool = False
    checked_by: str = ""


def tool_meta(meta: object) -> ToolMeta:
    """What the ``_meta`` of a tool says, whatever it is: another type counts as nothing said.

    >>> tool_meta({"mesh/checkedBy": "was_refunded"})
    ToolMeta(is_check=False, checked_by='was_refunded')
    >>> tool_meta({"mesh/check": "yes"}), tool_meta(None)
    (ToolMeta(is_check=False, checked_by=''), ToolMeta(is_check=False, checked_by=''))
    """
    said = meta if isinstance(meta, Mapping) else {}
    checked_by = said.get(CHECKED_BY)
    return ToolMeta(said.get(IS_CHECK) is True, checked_by if isinstance(checked_by, str) else "")


class ArgumentMeta(msgspec.Struct, frozen=True):
    """What a trusted server says of a tool, for policies: how much it can do, the names of the arguments that
    are paths, the one that is a shell command, and the two that are a program and the list of its arguments.
    ``must_ask``: a person is to be asked at every call. ``root_arguments`` name the root that a path begins
    in.

    ``preview`` and ``check`` are the arguments that make a call one that changes nothing, and tells what it
    would do, or whether it has been done. ``rest`` is the argument that gives more of a preview."""

    risk: Risk | None = None
    paths: tuple[str, ...] = ()
    command: str = ""
    exe: tuple[str, str] | None = None
    must_ask: bool = False
    preview: dict[str, Any] = {}
    check: dict[str, Any] = {}
    rest: str = ""
    root_arguments: tuple[str, ...] = ()


def argument_meta(meta: object) -> ArgumentMeta:
    """What the ``_meta`` of a tool says under `ABOUT`, whatever it is: another type counts as nothing said.

    >>> argument_meta({"mesh": {"paths": ["path", {"path": "to", "root": "to_root"}], "risk": "huge"}}).paths
    ('path', 'to')
    """
    said = meta.get(ABOUT) if isinstance(meta, Mapping) else None
    about = said if isinstance(said, Mapping) else {}
    paths = about.get("paths")
    listed = (_path_argument(each) for each in (paths if isinstance(paths, list) else ()))
    command, exe = about.get("command"), about.get("exe")
    is_exe = isinstance(exe, list) and len(exe) == 2 and all(isinstance(each, str) for each in exe)
    return ArgumentMeta(
        next((risk for risk in get_args(Risk) if risk == about.get("risk")), None),
        tuple(path for path in listed if path),
        command if isinstance(command, str) else "",
        (exe[0], exe[1]) if is_exe and isinstance(exe, list) else None,
        about.get("ask") is True,
        _arguments(about.get("preview")),
        _arguments(about.get("check")),
        rest if isinstance(rest := about.get("rest"), str) else "",
        tuple(dict.fromkeys(_root_arguments(paths))),
    )


def _root_arguments(paths: object) -> Iterator[str]:
    """The arguments that say in which root a path begins."""
    for each in paths if isinstance(paths, list) else ():
        root = each.get("root") if isinstance(each, Mapping) else None
        if isinstance(root, str) and root:
            yield root


def _arguments(said: object) -> dict[str, Any]:
    return {str(key): value for key, value in said.items()} if isinstance(said, Mapping) else {}


def is_conflict(meta: object) -> bool:
    """Whether the ``_meta`` of a result says that what the call expects is not there."""
    about = meta.get(ABOUT) if isinstance(meta, Mapping) else None
    return isinstance(about, Mapping) and about.get("conflict") is True


def asks_of(meta: object) -> tuple[str, ...]:
    """What the ``_meta`` of a result asks of the node, whatever it is: another type counts as nothing
    asked."""
    asked = meta.get(ASKS) if isinstance(meta, Mapping) else None
    return tuple(each for each in asked if isinstance(each, str)) if isinstance(asked, list) else ()


def _path_argument(said: object) -> str:
    name = said.get("path") if isinstance(said, Mapping) else said
    return name if isinstance(name, str) else ""


def meta_of(context: ExecutionContext) -> dict[str, Any]:
    """The ``_meta`` that carries an execution context."""
    execution = msgspec.to_builtins(context)
    traceparent = execution.pop(TRACEPARENT, "")
    return {EXECUTION: execution, **({TRACEPARENT: traceparent} if traceparent else {})}


def context_of(meta: Mapping[str, Any] | None) -> ExecutionContext:
    """The execution context in the ``_meta`` of a call; an empty one if there is none."""
    meta = meta or {}
    try:
        data = {**_NOWHERE, **meta.get(EXECUTION, {}), TRACEPARENT: meta.get(TRACEPARENT, "")}
        return msgspec.convert(data, ExecutionContext)
    except (msgspec.ValidationError, TypeError):
        return msgspec.convert(_NOWHERE, ExecutionContext)


_NOWHERE = {"idempotency_key": "", "trace_id": "", "depth": 1, "agent_path": ()}
