"""Providers of other packages: found by their entry points, and refused with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.cli.preflight import obstacles
from mesh.config.model import parse
from mesh.core.errors import ConfigError
from mesh.core.events import LlmCall
from mesh.core.messages import User
from mesh.llm.config_checks import model_problems
from mesh.llm.models import check_variables, resolve
from mesh.llm.port import LlmRequest
from mesh.llm.prices import Prices
from mesh.llm.routing import provider_for
from tests.worlds import packages
from tests.worlds.providers import answer_of

SHOUT = """
from mesh.providers import LlmCall, Provider

class Shout:
    def __init__(self, endpoint):
        self.endpoint = endpoint

    async def stream(self, request):
        text = f"{request.messages[-1].text.upper()} {self.endpoint.base_url} {self.endpoint.api_key}"
        yield LlmCall(model=request.model, text=text)

    async def close(self): ...

def refuse(parameters):
    if parameters.temperature == 1:
        yield ("temperature",), "is too hot; expected less than 1"

provider = Provider(
    make=Shout,
    parameters=("temperature",),
    check_parameters=refuse,
    key="SHOUT_KEY",
    base_url="https://shout.example",
    base_url_variable="SHOUT_URL",
    prices={"loud": {"input": 2, "output": 4}},
)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    packages.use(tmp_path, monkeypatch)
    yield tmp_path
    monkeypatch.undo()
    packages.forget()
    packages.unload(["shout", "other"])


@pytest.fixture
def shout(site: Path) -> None:
    packages.install(site, "shout", SHOUT, "shout = shout:provider")


def node(model: str, parameters: str = "{}") -> str:
    return f"agent:\n  name: a\n  type: llm\n  model: {model}\n  parameters: {parameters}"


def problem(model: str, parameters: str = "{}") -> str:
    (found,) = model_problems(parse(node(model, parameters), "agent.yaml", {}))
    return found


@pytest.mark.usefixtures("shout")
async def test_a_model_of_an_installed_package_is_asked_with_its_key_at_its_server() -> None:
    env = {"SHOUT_KEY": " k ", "SHOUT_URL": "http://elsewhere"}
    for variables, expected in (
        (env, "HI http://elsewhere k"),
        ({"SHOUT_KEY": "k"}, "HI https://shout.example k"),
    ):
        llm = provider_for("shout:loud", variables)
        asked = LlmRequest(model="shout:loud", system="", messages=(User("hi"),))
        assert (await answer_of(llm, asked)).text == expected
        await llm.close()


@pytest.mark.usefixtures("shout")
def test_what_a_package_declares_is_checked_in_the_config() -> None:
    assert problem("shout:loud", "{seed: 1}") == (
        "agent.yaml:5: agent.parameters.seed: shout, which serves shout:loud, has no seed; "
        "expected one of: temperature, max_tokens"
    )
    assert problem("shout:loud", "{temperature: 1.0}") == (
        "agent.yaml:5: agent.parameters.temperature: shout, which serves shout:loud, is too hot; "
        "expected less than 1"
    )
    with pytest.raises(ConfigError, match="SHOUT_KEY is not set: the model 'loud' \\(shout\\) needs"):
        check_variables(resolve("shout:loud", {}), {})


@pytest.mark.usefixtures("shout")
def test_the_prices_that_a_package_declares_count_after_those_of_the_config() -> None:
    from mesh.config.model import ModelPrice
    from mesh.core.events import Usage

    call = LlmCall(model="shout:loud", usage=Usage(1_000_000, 1_000_000))
    assert Prices().cost(call) == 6
    assert Prices({"loud": ModelPrice(input=1, output=1)}).cost(call) == 2
    assert Prices().cost(LlmCall(model="shout:quiet")) is None


def test_two_packages_with_one_name_are_refused_and_named(site: Path) -> None:
    packages.install(site, "shout", SHOUT, "shout = shout:provider")
    packages.install(site, "other", SHOUT, "shout = other:provider", version="2.1")
    assert problem("shout:loud") == (
        "agent.yaml:4: agent.model: several packages provide the models of shout: other 2.1 and shout 1.0; "
        "uninstall all but one"
    )


def test_a_package_cannot_take_the_name_of_a_provider_of_the_mesh(site: Path) -> None:
    packages.install(site, "shout", SHOUT, "openai = shout:provider")
    assert "several packages provide the models of openai: mesh " in problem("openai:gpt")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_sdk", "does not import: ModuleNotFoundError: No module named 'no_such_sdk' ({}:1)"),
        ("\n\nraise SystemExit('no')", "does not import: SystemExit: no ({}:3)"),
        ("", "does not import: AttributeError: module 'shout' has no attribute 'provider'"),
        (
            "provider = print",
            "is not declared: shout:provider is a builtin_function_or_method; "
            "expected a mesh.providers.Provider",
        ),
        (
            SHOUT.replace("stream(self", "flow(self"),
            "makes a Shout, which has no stream(request) that returns an async iterator of events",
        ),
        (
            SHOUT.replace("        yield LlmCall", "        return LlmCall"),
            "makes a Shout, which has no stream(request) that returns an async iterator of events",
        ),
        (
            "from mesh.providers import Provider\nprovider = Provider(make=object, parameters=())",
            "makes an object, which has no stream(request) that returns an async iterator of events",
        ),
        (SHOUT.replace("async def close", "def close"), "makes a Shout, which has no coroutine close()"),
    ],
    ids=[
        "missing SDK",
        "exits",
        "empty",
        "no declaration",
        "no stream",
        "a coroutine",
        "object",
        "no coroutine",
    ],
)
def test_a_package_that_is_no_provider_is_told_with_the_reason(site: Path, source: str, told: str) -> None:
    packages.install(site, "shout", source, "shout = shout:provider")
    expected = told.format(site / "shout.py")
    assert problem("shout:loud") == (
        f"agent.yaml:4: agent.model: the provider shout of the package shout 1.0 {expected}"
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('parameters=("heat",)', "Provider(parameters[0]): is none of the choices; expected 'temperature', "),
        ('keys="X"', "Provider(keys): unknown key; did you mean key? ({}:5)"),
        ('key="not a name"', "Provider(key): does not fit; expected text that matches "),
        ("key=3", "Provider(key): is a number; expected text"),
        ('make="compatible"', "Provider(make): is text; expected a function or a class"),
        ('base_url="shout.example"', "Provider(base_url): "),
        (
            'prices={"x": dict(input=1, output=2, cahced=1)}',
            "Provider(prices.x.cahced): unknown key; did you",
        ),
    ],
)
def test_a_declaration_with_a_wrong_field_is_told_with_the_field_and_its_line(
    site: Path, wrong: str, told: str
) -> None:
    right = {"make": "print", "parameters": "()"}
    right.pop(wrong.partition("=")[0], None)
    fields = "".join(f"    {name}={value},\n" for name, value in right.items())
    source = f"from mesh.providers import Provider\nprovider = Provider(\n{fields}    {wrong},\n)"
    packages.install(site, "shout", source, "shout = shout:provider")
    found = problem("shout:loud")
    assert f"is not declared: {told.format(site / 'shout.py')}" in found
    assert f"({site / 'shout.py'}:{3 + len(right)})" in found


@pytest.mark.parametrize(
    ("make", "told"),
    [
        ("lambda _: 'none'", "made a str, which has no stream"),
        ("lambda _: 1 / 0", r"cannot be made: ZeroDivisionError: division by zero \(.*shout.py:2\)"),
    ],
)
async def test_a_function_that_makes_no_provider_is_refused_when_it_is_used(
    site: Path, make: str, told: str
) -> None:
    source = f"from mesh.providers import Provider\nprovider = Provider(make={make}, parameters=())"
    packages.install(site, "shout", source, "shout = shout:provider")
    with pytest.raises(ConfigError, match=f"the provider shout {told}"):
        provider_for("shout:loud", {})


ELSEWHERE = """
from mesh.providers import Provider, compatible

provider = Provider(
    make=compatible,
    parameters=(),
    key="SHOUT_KEY",
    {}
)
"""


def test_a_compatible_server_without_an_address_is_refused(site: Path) -> None:
    """The SDK would send the key to OpenAI."""
    packages.install(site, "shout", ELSEWHERE.format(""), "shout = shout:provider")
    assert problem("shout:loud").endswith(
        "is not declared: Provider(base_url_variable): is not right; "
        f"compatible needs base_url, or base_url_variable, or both ({site / 'shout.py'}:4)"
    )


async def test_a_compatible_server_whose_address_is_not_set_is_not_started(site: Path) -> None:
    source = ELSEWHERE.format('base_url_variable="SHOUT_URL"')
    packages.install(site, "shout", source, "shout = shout:provider")
    config = parse(node("shout:loud"), "agent.yaml", {})
    assert model_problems(config) == []
    told = "the model 'loud' (shout) needs the base URL of its API in it"
    for variables in ({"SHOUT_KEY": "k"}, {"SHOUT_KEY": "k", "SHOUT_URL": " "}):
        with pytest.raises(ConfigError) as refused:
            provider_for("shout:loud", variables)
        assert refused.value.problems == [f"SHOUT_URL is not set: {told}"]
    assert obstacles([config], {})[-2:] == [
        f"agent.yaml:4: agent.model: SHOUT_URL is not set: {told}",
        "agent.yaml:4: agent.model: SHOUT_KEY is not set: the model 'loud' (shout) needs an API key in it",
    ]
    await provider_for("shout:loud", {"SHOUT_KEY": "k", "SHOUT_URL": "http://127.0.0.1:9/v1"}).close()


async def test_a_compatible_server_that_a_package_makes_itself_needs_an_address_too(site: Path) -> None:
    source = ELSEWHERE.format("").replace("make=compatible", "make=lambda endpoint: compatible(endpoint)")
    packages.install(site, "shout", source, "shout = shout:provider")
    with pytest.raises(ConfigError, match=r"the provider shout cannot be made: .*needs a base_url"):
        provider_for("shout:loud", {"SHOUT_KEY": "k"})


def test_a_broken_package_harms_only_those_who_use_it(site: Path) -> None:
    packages.install(site, "shout", "1 / 0", "shout = shout:provider")
    assert model_problems(parse(node("openai:gpt"), "agent.yaml", {})) == []
    assert Prices().cost(LlmCall(model="shout:loud")) is None
