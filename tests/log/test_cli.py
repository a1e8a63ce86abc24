"""`mesh log` and `mesh export` on files: what is printed where, and how it ends."""

import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mesh.cli import app
from mesh.cli.journal_source import without_secrets
from mesh.core.events import ConversationCompleted, encode
from tests.journal.golden.record import HERE, ID

MESH = Path(sys.executable).parent / "mesh"
SIMPLE = (HERE / "v1" / "simple.jsonl").read_bytes()
SEEN = (Path(__file__).parent / "golden" / "simple.txt").read_text()
WITHIN_S = 30


def mesh(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one journal, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("MESH_URL", "MESH_TOKEN", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f"conversation_{ID}.jsonl").write_bytes(SIMPLE)
    return folder


class TestLog:
    def test_it_reads_the_journal_for_people(self, data: Path) -> None:
        result = mesh("log", ID[:4], "--data-dir", data)
        assert (result.exit_code, result.stdout, result.stderr) == (0, SEEN, "")

    def test_the_config_says_where_the_data_is_what_nodes_are_called_and_what_models_cost(
        self, data: Path
    ) -> None:
        config = data.parent / "config" / "agent.yaml"
        config.parent.mkdir()
        price = "{scripted: {input: 0, output: 0}}"
        config.write_text(f"data_dir: {data}\nllm: {{model: scripted, prices: {price}}}\n")
        for asked in ([], ["--config", config]):
            result = mesh("log", ID, *asked)
            assert result.exit_code == 0, result.stderr
            assert "cost         $0.00\n" in result.stdout

    def test_an_agent_with_a_folder_of_its_own_below_data_dir_is_found_there(self, data: Path) -> None:
        home = data / "agents" / "shop"
        (home / "configs").mkdir(parents=True)
        (data / f"conversation_{ID}.jsonl").rename(home / f"conversation_{ID}.jsonl")
        config = data.parent / "shop.yaml"
        config.write_text(f"name: shop\ndata_dir: {data}\nllm: {{model: offline}}\n")
        result = mesh("log", ID[:4], "--config", config)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "user: Go." in result.stdout
        assert mesh("export", ID, "--config", config).stdout_bytes == SIMPLE

    def test_json_is_the_journal_as_it_is(self, data: Path) -> None:
        result = mesh("log", ID, "--data-dir", data, "--json")
        assert result.stdout_bytes == SIMPLE

    def test_actions_are_what_each_agent_did_as_json_lines(self, data: Path) -> None:
        result = mesh("log", ID, "--data-dir", data, "--actions")
        assert (result.exit_code, result.stderr) == (0, "")
        actions = [json.loads(line) for line in result.stdout.splitlines()]
        assert actions[0]["action"] == "agent_start" and actions[0]["data"]["input"] == "Go."
        assert {action["agentName"] for action in actions} == {actions[0]["agentName"]}
        assert actions[-1]["action"] == "agent_complete"

    def test_one_form_of_json_at_a_time(self, data: Path) -> None:
        result = mesh("log", ID, "--data-dir", data, "--actions", "--json")
        assert result.exit_code == 2 and "choose one" in result.stderr

    def test_a_file_is_read_in_place_of_an_id_wherever_it_came_from(self, data: Path) -> None:
        Path("talk.jsonl").write_bytes(SIMPLE)
        assert mesh("log", "talk.jsonl").stdout == SEEN

    def test_damaged_lines_are_warnings_with_their_number_and_the_rest_is_shown(self, data: Path) -> None:
        lines = SIMPLE.splitlines(keepends=True)
        Path("talk.jsonl").write_bytes(b"".join([*lines[:3], b"\x00\xff\n", *lines[4:]]))
        result = mesh("log", "talk.jsonl")
        assert result.exit_code == 0
        assert (
            result.stderr
            == "mesh: warning: talk.jsonl:4: is no event (JSON is malformed: invalid character (byte 0))\n"
        )
        assert result.stdout.count("\n") == SEEN.count("\n") - 1

    def test_a_file_that_is_no_journal_is_told_within_a_bound(self, data: Path) -> None:
        Path("x.bin").write_bytes(os.urandom(20_000))
        result = mesh("log", "x.bin")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.count("\n") == 21

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["log", "9", "--data-dir", "data"], 1, "there is no conversation 9 in data/ (1 other is there)"),
            (["log", "9"], 2, "no config/agent.yaml here: --url, --data-dir or --config says where to look"),
            (["log", "9", "--config", "none.yaml"], 2, "none.yaml:1: cannot be read"),
            (["log", "9", "--data-dir", "data", "--url", "http://x"], 2, "exclude each other"),
            (["log", "9", "--url", "localhost:8080"], 2, "localhost:8080 is no URL"),
            (
                ["log", "9", "--url", "http://u:secret@127.0.0.1:9"],
                1,
                "mesh: http://127.0.0.1:9: nobody answers",
            ),
            (
                ["export", "9", "--url", "http://127.0.0.1:9", "--token", "a b"],
                2,
                "--token: it has characters",
            ),
            (["import", "none.jsonl"], 1, "none.jsonl: No such file or directory"),
            (["import", "data", "--url", "http://127.0.0.1:9"], 1, "data: Is a directory"),
        ],
    )
    def test_what_is_wrong_is_one_line(self, data: Path, arguments: list[str], code: int, said: str) -> None:
        result = mesh(*arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1

    def test_a_broken_default_config_that_is_not_needed_is_a_warning(self, data: Path) -> None:
        Path("config").mkdir()
        Path("config/agent.yaml").write_text("nonsense: 1")
        result = mesh("log", ID, "--data-dir", data)
        assert (result.exit_code, result.stdout) == (0, SEEN)
        assert result.stderr.startswith("mesh: warning: config/agent.yaml:1: nonsense")


class TestOnATerminal:
    def run(self, data: Path, **env: str) -> str:
        """What a terminal gets."""
        leader, follower = pty.openpty()
        command = [MESH, "log", ID, "--data-dir", data]
        with subprocess.Popen(
            command, stdout=follower, env={**os.environ, "TERM": "xterm", **env}
        ) as process:
            os.close(follower)
            found = b""
            try:
                while piece := os.read(leader, 65536):
                    found += piece
            except OSError:  # that is how a pty ends
                pass
            assert process.wait(WITHIN_S) == 0
        os.close(leader)
        return found.decode()

    def test_it_has_colours(self, data: Path) -> None:
        assert "\x1b[1;36muser: Go." in self.run(data)

    @pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_unless_colours_are_not_wanted(self, data: Path, env: dict[str, str]) -> None:
        assert self.run(data, **env).replace("\r\n", "\n") == SEEN


class TestInAPipe:
    def test_a_reader_that_leaves_early_is_no_error_to_read_about(self, data: Path) -> None:
        said = SIMPLE.splitlines(keepends=True)[5]
        lines = [said.replace(b'"seq":6', b'"seq":%d' % seq) for seq in range(8, 3000)]
        (data / f"conversation_{ID}.jsonl").write_bytes(SIMPLE + b"".join(lines))
        for form in ([], ["--json"]):
            command = [MESH, "log", ID, "--data-dir", data, *form]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.stdout
                assert process.stderr
                process.stdout.readline()
                process.stdout.close()
                assert process.stderr.read() == b""
                process.wait(WITHIN_S)

    def test_a_terminal_of_few_characters_gets_question_marks(self, data: Path) -> None:
        env = {**os.environ, "PYTHONIOENCODING": "ascii"}
        found = subprocess.run(
            [MESH, "log", ID, "--data-dir", data], env=env, capture_output=True, timeout=WITHIN_S, check=True
        )
        assert b"test look ? [" in found.stdout


class TestFollow:
    @contextmanager
    def start(self, data: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """A follower; it is gone afterwards, whatever happens."""
        command = [MESH, "log", ID, "--follow", "--data-dir", data, *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def test_what_is_appended_is_shown_until_ctrl_c_and_then_the_summary(self, data: Path) -> None:
        with self.start(data) as process:
            assert process.stdout
            head = [process.stdout.readline() for _ in range(10)]
            assert head[-1].startswith(b"00:00:07  done")
            with (data / f"conversation_{ID}.jsonl").open("ab") as file:
                file.write(
                    b'{"type":"user_message","text":"More.","seq":8,"time":"2026-01-01T00:00:08.000Z","turn":2}\n'
                )
            assert [process.stdout.readline() for _ in range(3)][-1] == b"00:00:08  user: More.\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, err) == (130, b"")
        assert b"\nsummary\n  turns        2, the last one is open\n" in out

    def test_it_ends_by_itself_when_the_conversation_is_final(self, data: Path) -> None:
        with self.start(data, "--json") as process:
            assert process.stdout
            assert [process.stdout.readline() for _ in range(7)] == SIMPLE.splitlines(keepends=True)
            last = encode(ConversationCompleted(seq=8, time="2026-01-01T00:00:08.000Z")) + b"\n"
            with (data / f"conversation_{ID}.jsonl").open("ab") as file:
                file.write(last)
            out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, out, err) == (0, last, b"")


class TestExport:
    def test_it_is_the_journal_to_stdout_or_to_a_file_for_the_owner_alone(self, data: Path) -> None:
        assert mesh("export", ID, "--data-dir", data).stdout_bytes == SIMPLE
        assert mesh("export", ID, "--data-dir", data, "-o", "talk.jsonl").exit_code == 0
        assert Path("talk.jsonl").read_bytes() == SIMPLE
        assert stat.S_IMODE(Path("talk.jsonl").stat().st_mode) == 0o600

    def test_a_file_that_is_there_is_overwritten_with_force_only(self, data: Path) -> None:
        there = Path("talk.jsonl")
        there.write_text("mine")
        result = mesh("export", ID, "--data-dir", data, "-o", there)
        assert (result.exit_code, there.read_text()) == (2, "mine")
        assert result.stderr == "mesh: talk.jsonl is there already; --force overwrites it\n"
        assert mesh("export", ID, "--data-dir", data, "-o", there, "--force").exit_code == 0
        assert there.read_bytes() == SIMPLE
        assert {path.name for path in Path().iterdir()} == {"data", "talk.jsonl"}

    @pytest.mark.parametrize("force", [[], ["--force"]])
    @pytest.mark.parametrize("output", ["none/talk.jsonl", "data", "data/conversation_x.jsonl/talk"])
    def test_where_nothing_can_be_written_nothing_is_left(
        self, data: Path, output: str, force: list[str]
    ) -> None:
        (data / "conversation_x.jsonl").touch()
        before = sorted(Path().rglob("*"))
        result = mesh("export", ID, "--data-dir", data, "-o", output, *force)
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith(f"mesh: {output}")
        assert sorted(Path().rglob("*")) == before

    def test_damaged_lines_stay_behind_with_a_warning(self, data: Path) -> None:
        (data / f"conversation_{ID}.jsonl").write_bytes(SIMPLE + b'{"type":"us')
        result = mesh("export", ID, "--data-dir", data)
        assert (result.stdout_bytes, result.stderr) == (SIMPLE, "mesh: warning: export:8: is cut off\n")

    def test_a_journal_without_a_readable_line_is_not_exported(self, data: Path) -> None:
        (data / f"conversation_{ID}.jsonl").write_bytes(b"\x00" * 100)
        result = mesh("export", ID, "--data-dir", data, "-o", "talk.jsonl")
        assert (result.exit_code, Path("talk.jsonl").exists()) == (1, False)
        assert "there is no event in it that can be read" in result.stderr


def test_a_url_is_told_with_its_path_and_without_its_secrets() -> None:
    assert without_secrets("http://ann:pass@h:1/b/?key=x#y") == "http://h:1/b"
    assert without_secrets("http://h:1/") == without_secrets("http://h:1") == "http://h:1"
