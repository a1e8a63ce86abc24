"""The objects of a file as plain data, which the text of a config can hold."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mesh.config.yaml_tree import Loc

MAX_DEPTH = 100
"""Levels of a value. Values of a config are far flatter; one that contains itself has no end."""
_SHOWN = 6
"""Levels of a key that are told of a value that is too deep."""


class AgentProblem(Exception):
    """Something wrong with an object of the file, at a key of the config."""

    def __init__(self, loc: Loc, message: str) -> None:
        super().__init__(message)
        self.loc = loc


def set_fields(model: BaseModel) -> dict[str, Any]:
    """The fields that were given, under the names that a config has for them, in the order of the model."""
    fields = type(model).model_fields
    return {
        field.alias or name: getattr(model, name)
        for name, field in fields.items()
        if name in model.model_fields_set
    }


def plain(value: Any, loc: Loc) -> Any:
    """A value as a config has it. Raises `AgentProblem`."""
    if len(loc) > MAX_DEPTH:
        raise AgentProblem(loc[:_SHOWN], f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, BaseModel):
        return {key: plain(each, (*loc, key)) for key, each in set_fields(value).items()}
    if isinstance(value, Mapping):
        return {_key(key, loc): plain(each, (*loc, key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, (*loc, index)) for index, each in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if wrong := _not_in_a_config(value):
        raise AgentProblem(loc, wrong)
    return value


def _key(key: object, loc: Loc) -> str:
    if not isinstance(key, str) or (wrong := _not_in_a_config(key)):
        raise AgentProblem(loc, "has a key that is no text" if not isinstance(key, str) else wrong)
    return key


def _not_in_a_config(value: Any) -> str:
    """Why a scalar cannot be in a config, or nothing."""
    if isinstance(value, str):
        has_surrogate = not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)
        return (
            "has a character that a config cannot hold; remove it" if "\0" in value or has_surrogate else ""
        )
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return "has more than 18 digits; expected a shorter number" if abs(value) >= 10**18 else ""
    if isinstance(value, float):
        return "" if isfinite(value) else "is no finite number; expected one"
    return f"is of type {type(value).__name__}; expected text, a number, a list or a mapping"
