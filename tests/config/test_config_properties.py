"""Whatever a config says, it parses or its problems are told, and no problem holds a secret."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.config.model import Config, parse
from mesh.core.errors import ConfigError
from tests.worlds.long import as_often_as

SECRET = "hunter2-hunter2"


def read(text: str) -> Config:
    return parse(text, "agent.yaml", {"S": SECRET})


KEYS = sorted(
    {*Config.model_fields, "command", "url", "env", "headers", "agents", "type", "name", "tools", "llm"}
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["llm", "loop", "parallel", "a2a", "${S}", "x${S}", "${", "${NOPE}", "http://x", "$${S}"]
    )
)
YAMLISH = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=10,
)


@settings(max_examples=as_often_as(100))
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), YAMLISH, max_size=8))
def test_a_config_parses_or_its_problems_are_told_without_the_secret(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    try:
        config = read(text)
    except ConfigError as error:
        assert error.problems
        assert all(problem.startswith("agent.yaml:") for problem in error.problems)
        assert SECRET not in str(error)
    else:
        assert read(config.source).digest == config.digest


@settings(max_examples=as_often_as(300))
@given(st.text(max_size=200) | st.text(alphabet=" \n-:[]{}&*!|>'\"#%@`${}a0?,~\t", max_size=80))
def test_any_text_parses_or_raises_config_error(text: str) -> None:
    try:
        read(text)
    except ConfigError as error:
        assert error.problems
