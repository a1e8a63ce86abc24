"""The base of every part of a config."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

_PRINTED = ("name", "type", "model", "command")


class ConfigSection(BaseModel):
    """The base of every part of a config: strict, frozen, without unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Arguments, environments, headers and URLs may hold secrets, so only a few texts are printed.
        for key, value in super().__repr_args__():
            if key in _PRINTED or not isinstance(value, str | list | dict):
                yield key, value
