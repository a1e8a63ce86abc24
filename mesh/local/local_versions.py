"""The trees of an agent in this process: each turn runs on the version that it began on, as long as
that is known."""

import asyncio
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.config.kept_versions import Versions, kept_config
from mesh.config.model import Config
from mesh.core.errors import ConfigError, Unavailable
from mesh.core.events import Preview, ToolCall, ToolResult
from mesh.core.verdict import Verdict
from mesh.mcp.port import Catalogue
from mesh.policy.grants import Grant
from mesh.tree.turn import (
    AbandonedTask,
    Activation,
    Hearing,
    News,
    PassInput,
    PassOutput,
    Recorder,
    UnsettledCall,
)

if TYPE_CHECKING:
    from mesh.local.version import Version


class LocalVersions:
    """`Tree`. ``config`` is the version that was started."""

    def __init__(self, config: Config, data_dir: Path, kept: Versions, recorder: Recorder) -> None:
        self._kept = kept
        self._config = config
        self._data_dir = data_dir
        self._recorder = recorder
        self._versions: dict[str, Version] = {}
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Learns the tools of the version that was started. Raises what went wrong with them; what needs
        them tries again."""
        await (await self._version(self._config.digest)).tree.start()

    async def catalogues(self) -> list[Catalogue]:
        """The present tools of the version that was started. Raises `ToolSessionError`."""
        return await (await self._version(self._config.digest)).catalogues()

    async def close(self) -> None:
        """Ends all servers."""
        for version in self._versions.values():
            await version.close()

    async def run(self, turn: PassInput) -> PassOutput:
        try:
            version = await self._version(turn.digest)
        except ConfigError as problem:
            return PassOutput("failed", str(problem))
        return await version.tree.run(turn)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        try:
            version = await self._version(digest)
        except ConfigError as problem:
            return str(problem)
        return await version.tree.problems(digest, node, tool, arguments)

    async def verdict(self, digest: str, node: str, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        return await (await self._known(digest)).tree.verdict(digest, node, call, grants)

    async def preview(self, digest: str, node: str, call: ToolCall, offset: int) -> Preview | None:
        return await (await self._known(digest)).tree.preview(digest, node, call, offset)

    async def cancel(self, task: AbandonedTask) -> None:
        await (await self._known(task.digest)).tree.cancel(task)

    async def hear(self, digest: str, activation: Activation, news: News, is_durable: bool) -> Hearing:
        return await (await self._known(digest)).tree.hear(digest, activation, news, is_durable)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await (await self._known(call.digest)).tree.settle(call)

    async def _known(self, digest: str) -> "Version":
        try:
            return await self._version(digest)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None

    async def _version(self, digest: str) -> "Version":
        """Raises `ConfigError` when the version is not known any more, or cannot run here."""
        async with self._making:  # of two callers, the second finds what the first has made
            if digest not in self._versions:
                # In a thread: meanwhile a person writes the first message.
                module = await asyncio.to_thread(importlib.import_module, "mesh.local.version")
                config = await self._config_of(digest)
                self._versions[digest] = module.Version(config, self._data_dir, self._recorder)
        return self._versions[digest]

    async def _config_of(self, digest: str) -> Config:
        if digest == self._config.digest:
            return self._config
        return await kept_config(self._kept, digest, os.environ)
