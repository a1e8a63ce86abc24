"""Logs of meshes that run, over HTTP: read, followed, and carried from one to another."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from mesh.access import keys
from mesh.cli import app
from mesh.journal.portable import read_lines
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import SIMPLE, ScriptedLlm, calls, says

MESH = Path(sys.executable).parent / "mesh"
WITHIN_S = 30


def mesh(*arguments: object, url: str, input: bytes | None = None) -> Result:
    given = [str(argument) for argument in (*arguments, "--url", url)]
    return CliRunner().invoke(app, given, catch_exceptions=False, input=input)


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and no mesh in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("MESH_URL", "MESH_TOKEN", "MESH_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here() -> Iterator[LiveMesh]:
    with LiveMesh(ScriptedLlm(says("Hello."))) as live:
        yield live


@pytest.fixture
def there() -> Iterator[LiveMesh]:
    with LiveMesh(ScriptedLlm(says("I remember."))) as live:
        yield live


def said(live: LiveMesh, message: str, conversation: str = "") -> str:
    """Says something, in a new conversation or one that is there; its id."""
    path = f"/conversations/{conversation}/messages" if conversation else "/conversations"
    answer = httpx.post(live.url + path, json={"message": message})
    assert answer.is_success, answer.text
    id: str = answer.json()["conversation"]["id"]
    return id


class TestLog:
    def test_the_beginning_of_an_id_is_enough(self, here: LiveMesh) -> None:
        id = said(here, "Hi.")
        result = mesh("log", id[:6], url=here.url)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith(f"conversation {id}\nagent test, ")
        assert "  user: Hi.\n" in result.stdout
        assert "test: Hello.  [scripted" in result.stdout
        assert "\nsummary\n  turns        1\n" in result.stdout

    def test_one_that_is_not_there_or_not_alone_is_told(self, here: LiveMesh) -> None:
        assert (
            f"there is no conversation zz in {here.url} (0 others" in mesh("log", "zz", url=here.url).stderr
        )
        ids = sorted(said(here, "Hi.") for _ in range(2))
        result = mesh("log", "", url=here.url)
        assert result.exit_code == 1
        assert "2 conversations" in result.stderr
        assert all(id in result.stderr for id in ids)
        gone = mesh("log", "00000000-0000-4000-8000-000000000000", url=here.url)
        assert (gone.exit_code, gone.stdout, gone.stderr.count("\n")) == (1, "", 1)

    def test_mesh_url_says_which_mesh(self, here: LiveMesh, monkeypatch: pytest.MonkeyPatch) -> None:
        id = said(here, "Hi.")
        monkeypatch.setenv("MESH_URL", here.url)
        assert "user: Hi." in CliRunner().invoke(app, ["log", id]).stdout

    def test_following_shows_what_happens_across_a_restart_until_the_conversation_is_final(
        self, here: LiveMesh
    ) -> None:
        id = said(here, "Hi.")
        command = [MESH, "log", id, "--follow", "--json", "--url", here.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout
                lines = [process.stdout.readline() for _ in range(4)]
                said(here, "Do you look?", id)
                lines += [process.stdout.readline() for _ in range(3)]
                here.restart()
                said(here, "Still there?", id)
                lines += [process.stdout.readline() for _ in range(3)]
                assert httpx.post(f"{here.url}/conversations/{id}/complete").is_success
                out, err = process.communicate(timeout=WITHIN_S)
            finally:
                process.kill()
        events, faults = read_lines([*lines, *out.splitlines()])
        assert (process.returncode, faults) == (0, [])
        assert [event.seq for event in events] == [*range(1, 12)]
        log = read_lines(httpx.get(f"{here.url}/conversations/{id}/log").content.split(b"\n"))[0]
        assert [(event.seq, event.key) for event in events] == [(event.seq, event.key) for event in log]
        assert all(b"mesh: warning: " in line for line in err.splitlines())


class TestKeys:
    def test_a_mesh_that_asks_for_a_key_gets_it_from_the_option_or_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = keys.add(tmp_path / "keys.yaml", "ann")
        setting = f"{SIMPLE}auth: {{keys_file: {tmp_path / 'keys.yaml'}}}\n"
        with LiveMesh(ScriptedLlm(says("Hello.")), setting) as live:
            made = httpx.post(
                f"{live.url}/conversations", json={"message": "Hi."}, headers={"X-API-Key": key}
            )
            id = made.json()["conversation"]["id"]
            refused = mesh("log", id, url=live.url)
            assert (refused.exit_code, refused.stdout) == (1, "")
            assert "asks for an API key" in refused.stderr and "--key or MESH_KEY" in refused.stderr
            assert "  user ann: Hi.\n" in mesh("log", id, "--key", key, url=live.url).stdout
            assert mesh("export", id, "-o", "talk.jsonl", "--key", key, url=live.url).exit_code == 0
            monkeypatch.setenv("MESH_KEY", key)
            assert "  user ann: Hi.\n" in mesh("log", id, url=live.url).stdout
            again = mesh("import", "talk.jsonl", url=live.url)
            assert "is here already" in again.stderr, "it was let in"
            monkeypatch.setenv("MESH_KEY", "mk_wrong one")
            bad = mesh("log", id, url=live.url)
            assert (bad.exit_code, "--key: it has characters" in bad.stderr) == (2, True)
            assert "wrong" not in bad.stderr


class TestCarrying:
    def carried(self, here: LiveMesh, there: LiveMesh, file: str = "talk.jsonl") -> tuple[str, Result]:
        id = said(here, "Remember 42.")
        assert mesh("export", id, "-o", file, url=here.url).exit_code == 0
        return id, mesh("import", file, url=there.url)

    def test_a_conversation_goes_on_where_it_was_carried_to(self, here: LiveMesh, there: LiveMesh) -> None:
        id, result = self.carried(here, there)
        assert (result.exit_code, result.stdout) == (0, f"{id}\n")
        assert result.stderr == f"4 events; go on with: mesh chat --resume {id} --url {there.url}\n"
        said(there, "What was it?", id)
        asked = there.mesh.llm.requests[-1]
        assert "Remember 42." in str(asked.messages)
        assert "turns        2" in mesh("log", id, url=there.url).stdout

    def test_what_is_there_already_is_refused(self, here: LiveMesh, there: LiveMesh) -> None:
        id, _ = self.carried(here, there)
        again = mesh("import", "talk.jsonl", url=there.url)
        assert (again.exit_code, again.stdout, again.stderr.count("\n")) == (1, "", 1)
        assert id in again.stderr
        assert mesh("import", "talk.jsonl", url=here.url).exit_code == 1

    def test_broken_lines_stay_behind_with_a_warning(self, here: LiveMesh, there: LiveMesh) -> None:
        id = said(here, "Remember 42.")
        lines = mesh("export", id, url=here.url).stdout_bytes.splitlines(keepends=True)
        damaged = b"".join([lines[0], b"?\n", lines[1], b'{"type":"\xff"}\n', *lines[2:], b'{"type":"comp'])
        result = mesh("import", "-", url=there.url, input=damaged)
        assert (result.exit_code, result.stdout) == (0, f"{id}\n")
        warned = [line for line in result.stderr.splitlines() if "warning" in line]
        assert [line.split(":")[3] for line in warned] == ["2", "4", "7"]
        assert mesh("export", id, url=there.url).stdout.count("user_message") == 1

    def test_a_stream_that_somebody_saved_can_be_imported(self, here: LiveMesh, there: LiveMesh) -> None:
        id = said(here, "Remember 42.")
        with httpx.stream("GET", f"{here.url}/conversations/{id}/events?after=0") as stream:
            saved = ""
            for piece in stream.iter_text():
                saved += piece
                if "event: completed" in saved and saved.endswith("\n\n"):
                    break
        result = mesh("import", "-", url=there.url, input=saved.encode())
        assert (result.exit_code, result.stdout) == (0, f"{id}\n")

    def test_a_lost_beginning_is_the_meshs_to_refuse(self, here: LiveMesh, there: LiveMesh) -> None:
        id = said(here, "Hi.")
        lines = mesh("export", id, url=here.url).stdout_bytes.splitlines(keepends=True)
        result = mesh("import", "-", url=there.url, input=b"".join(lines[1:]))
        assert result.exit_code == 1
        assert "conversation_created" in result.stderr

    def test_what_waited_for_a_person_is_asked_again_there(self, there: LiveMesh) -> None:
        with LiveMesh(ScriptedLlm(calls(("add", {"n": 1})))) as waits:
            id = said(waits, "Add 1.")
            assert "asks: run add(n=1)?" in mesh("log", id, url=waits.url).stdout
            exported = mesh("export", id, url=waits.url).stdout_bytes
        assert mesh("import", "-", url=there.url, input=exported).exit_code == 0
        log = mesh("log", id, url=there.url).stdout
        assert "failed: " in log
        assert "waits for" not in log
        said(there, "Go on.", id)

    def test_a_journal_of_nothing_is_not_sent(self, there: LiveMesh) -> None:
        result = mesh("import", "-", url=there.url, input=b"\x00\n")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "there is no event in it that can be read" in result.stderr


def test_a_mesh_that_is_not_there_is_one_line(here: LiveMesh) -> None:
    exported = mesh("export", said(here, "Hi."), url=here.url).stdout_bytes
    here.down()
    for arguments in (["import", "-"], ["export", "a"], ["log", "a"], ["log", "a", "--follow"]):
        result = mesh(*arguments, url=here.url, input=exported)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"mesh: {here.url}: nobody answers\n"
    here.up()


def test_a_mesh_that_answers_something_else_is_told_in_words(here: LiveMesh) -> None:
    result = mesh("log", "0" * 8 + "-0000-4000-8000-" + "0" * 12, url=f"{here.url}/docs")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
