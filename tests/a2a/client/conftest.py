"""An agent that speaks 1.0 and counts message ids, and its URL."""

from collections.abc import AsyncIterator

import pytest

from tests.worlds.agents import Agent, served


@pytest.fixture
def peer() -> Agent:
    return Agent()


@pytest.fixture
async def url(peer: Agent) -> AsyncIterator[str]:
    async with served(peer.app()) as where:
        yield where
