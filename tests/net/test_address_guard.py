"""Where HTTP may connect to: address rules for any address, and the check at the moment of connecting."""

import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from mesh.net.address_guard import guarded_session, host_and_port, is_public
from tests.worlds.agents import served

# From IANA's registries of special-purpose addresses, and multicast.
SPECIAL_V4 = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
]
SPECIAL_V6 = [
    *(
        "::/128",
        "::1/128",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:2::/48",
        "2001:db8::/32",
    ),
    *("2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
]
# What an address may be hidden in.
DISGUISES = ["{0}", "::ffff:{0}", "64:ff9b::{0}", "::{0}"]


def within(networks: list[str]) -> st.SearchStrategy[IPv4Address | IPv6Address]:
    def of(network: str) -> st.SearchStrategy[IPv4Address | IPv6Address]:
        whole = ip_network(network)
        last = int(whole.broadcast_address)
        return st.integers(int(whole.network_address), last).map(type(whole.network_address))

    return st.sampled_from(networks).flatmap(of)


@given(within(SPECIAL_V4), st.sampled_from(DISGUISES))
def test_no_special_ipv4_address_is_public_however_it_is_written(address: IPv4Address, form: str) -> None:
    assert not is_public(form.format(address))


@given(within(SPECIAL_V6))
def test_no_special_ipv6_address_is_public(address: IPv6Address) -> None:
    assert not is_public(str(address))
    assert not is_public(f"{address}%eth0")


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_a_disguised_ipv4_address_is_as_public_as_itself(address: IPv4Address) -> None:
    assert is_public(f"::ffff:{address}") == is_public(f"64:ff9b::{address}") == is_public(str(address))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_outside_the_registry_is_public(address: IPv4Address) -> None:
    special = any(address in ip_network(network) for network in SPECIAL_V4)
    odd = str(address) == "168.63.129.16" or address in ip_network("192.88.99.0/24")
    assert is_public(str(address)) == (not special and not odd)


@given(st.text())
def test_what_is_no_address_is_not_public(text: str) -> None:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        assert not is_public(text)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::200e"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


def test_a_url_is_named_by_host_and_port() -> None:
    assert host_and_port("http://Agent.Example/a2a") == "agent.example:80"
    assert host_and_port("https://agent.example./a2a") == "agent.example:443"
    assert host_and_port("http://[::1]:8000") == "[::1]:8000"


class Names(AbstractResolver):
    """A resolver under the test's control: each name has a list of answers, the last one stays."""

    def __init__(self, **names: list[str]) -> None:
        self.meaning = {name.replace("_", "."): list(answers) for name, answers in names.items()}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = self.meaning[host]
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None:
        return None


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="the inner service")

    app = web.Application()
    app.router.add_get("/", hello)
    async with served(app) as url:
        yield int(url.rpartition(":")[2])


async def got(session: aiohttp.ClientSession, url: str) -> str:
    async with session, session.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
        return await answer.text()


async def refused(session: aiohttp.ClientSession, url: str) -> str:
    with pytest.raises(aiohttp.ClientConnectorError) as error:
        await got(session, url)
    return str(error.value)


async def test_an_address_written_as_the_host_is_checked(port: int) -> None:
    assert "127.0.0.1 is not a public address" in await refused(
        guarded_session(), f"http://127.0.0.1:{port}/"
    )
    assert "not a public address" in await refused(guarded_session(), f"http://[::ffff:127.0.0.1]:{port}/")


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.0.0.1", "0"])
async def test_other_ways_to_write_an_address_do_not_connect(port: int, host: str) -> None:
    with pytest.raises(aiohttp.ClientError):
        await got(guarded_session(), f"http://{host}:{port}/")


async def test_a_name_that_means_a_private_address_is_refused(port: int) -> None:
    names = Names(evil_example=["127.0.0.1"])
    why = await refused(guarded_session((), names), f"http://evil.example:{port}/")
    assert "127.0.0.1 is not a public address" in why


async def test_a_name_that_is_rebound_after_a_look_is_refused(port: int) -> None:
    names = Names(evil_example=["8.8.8.8", "127.0.0.1"])
    looked = await names.resolve("evil.example", port)
    assert is_public(looked[0]["host"])
    assert "not a public address" in await refused(guarded_session((), names), f"http://evil.example:{port}/")


async def test_what_the_config_names_may_be_private(port: int) -> None:
    names = Names(agent_internal=["127.0.0.1"])
    for named in ("agent.internal", f"agent.internal:{port}", "Agent.Internal."):
        session = guarded_session([named], names)
        assert await got(session, f"http://agent.internal:{port}/") == "the inner service"
    assert (
        await got(guarded_session([f"127.0.0.1:{port}"]), f"http://127.0.0.1:{port}/") == "the inner service"
    )


async def test_naming_one_port_of_a_host_names_no_other(port: int) -> None:
    names = Names(agent_internal=["127.0.0.1"])
    url = f"http://agent.internal:{port}/"
    assert "not a public address" in await refused(guarded_session(["agent.internal:1"], names), url)
    assert "not a public address" in await refused(guarded_session(["127.0.0.1:1"], names), url)


async def test_a_named_host_opens_no_door_for_another_name(port: int) -> None:
    names = Names(agent_internal=["127.0.0.2"], evil_example=["127.0.0.1"])
    session = guarded_session(["agent.internal"], names)
    with pytest.raises(aiohttp.ClientConnectorError):  # named, but nobody listens there
        async with session.get(f"http://agent.internal:{port}/"):
            pass
    assert "not a public address" in await refused(session, f"http://evil.example:{port}/")


async def test_proxies_of_the_environment_are_not_used(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    assert "not a public address" in await refused(guarded_session(), "http://10.1.2.3/")


async def test_no_cookie_is_kept(port: int) -> None:
    session = guarded_session()
    session.cookie_jar.update_cookies({"a": "b"})
    assert len(session.cookie_jar) == 0
    await session.close()
