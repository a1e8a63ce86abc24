"""The network of the tests fails as it says."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.rest import until
from tests.worlds.network import Machine, Network

ECHO = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
Server(("0.0.0.0", 7000), Echo).serve_forever()
"""


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    with Network(2) as network:
        echoes = [subprocess.Popen(each.command(sys.executable, "-c", ECHO)) for each in network.machines]
        until(lambda: all(map(answers, network.machines)))
        yield network.machines
    for echo in echoes:
        echo.wait(60)


def answers(machine: Machine) -> bool:
    """Whether it answers whoever asks from here."""
    try:
        with socket.create_connection((machine.address, 7000), timeout=1) as connection:
            connection.sendall(b"hello\n")
            return connection.recv(6) == b"hello\n"
    except OSError:
        return False


def hears(one: Machine, other: Machine) -> bool:
    """Whether the one gets an answer from the other."""
    ask = f"import socket; socket.create_connection(('{other.address}', 7000), timeout=1)"
    return (
        subprocess.run(one.command(sys.executable, "-c", ask), capture_output=True, check=False).returncode
        == 0
    )


def test_a_machine_that_is_cut_off_or_mute_answers_nobody_until_it_is_mended(machines: list[Machine]) -> None:
    first, second = machines
    until(lambda: hears(first, second) and hears(second, first))
    for lose in (first.cut, first.mute):
        lose()
        assert not answers(first) and answers(second)
        assert not hears(first, second) and not hears(second, first)
        first.mend()
        until(lambda: answers(first) and hears(first, second) and hears(second, first))


def test_what_runs_on_a_machine_that_is_killed_is_gone(machines: list[Machine]) -> None:
    first, second = machines
    first.kill()
    assert not answers(first) and answers(second)
