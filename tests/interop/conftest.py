from collections.abc import Iterator

import pytest

from tests.interop.agent import Agent


@pytest.fixture(scope="package")
def agent() -> Iterator[Agent]:
    made = Agent()
    with made:
        yield made
