"""The parts of `mcp-shell` that have nothing to do with processes."""

import io
import os
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given as on
from hypothesis import strategies as st

from mesh.sandbox.box import Blanks, Box, Covered
from mesh.sandbox.bubblewrap import wrapped
from mesh.sandbox.order import CommandLimits, End, Order, Restriction, end_of, order_of
from mesh.servers.config_file import Unusable
from mesh.servers.shell.shell_settings import ShellSettings, checked, loaded, opened, roots_of
from mesh.servers.shell.stream_output import MOST_CHARACTERS, MOST_IN_FILE, Output
from mesh.servers.shell.variables import inherited


class Kept(io.BytesIO):
    """A file whose content is there after it was closed."""

    def close(self) -> None:
        self.content = self.getvalue()
        super().close()


@on(st.lists(st.binary(min_size=1, max_size=200), max_size=30), st.integers(1, 3000))
def test_short_output_is_shown_whole_and_long_output_has_its_beginning_and_its_end(
    chunks: list[bytes], times: int
) -> None:
    content = b"".join(chunks) * min(times, 300_000 // max(1, sum(map(len, chunks))) + 1)
    kept = Kept()
    output = Output(lambda: kept)
    for start in range(0, len(content), 65536):
        output.add(content[start : start + 65536])
    output.close()
    shown, text = output.text(), content.decode("utf-8", "replace")
    assert output.total == len(content)
    if output.is_cut:
        head, tail = shown[: MOST_CHARACTERS * 2 // 5], shown[-(MOST_CHARACTERS * 3 // 5) :]
        assert text.startswith(head[:100])
        assert text.endswith(tail[-100:])
        assert len(shown) < MOST_CHARACTERS + 100
        assert kept.content == content[:MOST_IN_FILE]
    else:
        assert shown == text


def test_a_file_that_cannot_be_made_is_no_reason_to_lose_the_output() -> None:
    def fail() -> io.BytesIO:
        raise OSError(28, "No space left on device")

    output = Output(fail)
    for _ in range(100):
        output.add(b"x" * 1000)
    assert output.text().startswith("xxx")
    assert output.problem == "it could not be kept: No space left on device"


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "aws_secret", "GH_TOKEN", "PGPASSWORD", "MY_CREDENTIALS", "SSH_AUTH_SOCK"]
)
def test_nothing_that_sounds_like_a_secret_is_inherited(name: str) -> None:
    env = inherited(
        {name: "x", "HOME": "/home/me", "LC_ALL": "C", "OTHER": "y"}, [name, "OTHER"], ["/usr"], "/t"
    )
    assert env == {
        "HOME": "/home/me",
        "LC_ALL": "C",
        "OTHER": "y",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/t",
    }


def test_who_commits_is_inherited_although_its_name_sounds_like_a_secret() -> None:
    who = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "Ben"}
    others = {"GIT_AUTHOR_TOKEN": "x", "GIT_AUTHOR_DATE": "x", "MY_GIT_AUTHOR_NAME": "x"}
    assert inherited({**who, **others}, others, ["/usr"], "/t").items() >= who.items()
    assert not others.keys() & inherited({**who, **others}, others, ["/usr"], "/t").keys()


@pytest.mark.parametrize("value", ["C", "POSIX", "", "C.UTF-8", "de_DE.utf8", "sr_RS.UTF-8@latin"])
def test_a_locale_of_utf_8_or_ascii_is_inherited(value: str) -> None:
    assert inherited({"LC_ALL": value}, [], ["/usr"], "/t")["LC_ALL"] == value


@pytest.mark.parametrize(
    "value", ["zh_CN.gbk", "zh_CN", "ja_JP.SJIS", "de_DE@euro", "/tmp/x.UTF-8", "a.UTF-8\n", "big5.utf8.big5"]
)
@pytest.mark.parametrize("name", ["LANG", "LC_ALL", "LC_CTYPE", "LC_NEW"])
def test_no_other_locale_is_inherited_because_bash_would_read_other_commands(name: str, value: str) -> None:
    assert name not in inherited({name: value}, [name], ["/usr"], "/t")


@on(st.text(max_size=20), st.text(max_size=20))
def test_what_is_inherited_has_a_name_in_the_list(name: str, value: str) -> None:
    known = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    value = value.encode("utf-8", "ignore").decode()
    for found in inherited({name: value}, [], ["/usr"], "/t"):
        assert found in known or found.startswith("LC_")


def test_an_order_arrives_as_it_was_sent() -> None:
    restriction = Restriction((("/usr", 7), ("/odd\udcff", 3)), network=True)
    order = Order(("sh", "-c", "ü"), {"A": "b"}, "/x\udcff", 1.5, CommandLimits(1, 2, 3), restriction, 2)
    assert order_of(order.to_json()) == order
    assert end_of(End(-9, "why").to_json()) == End(-9, "why")


def test_what_is_hidden_is_mounted_last() -> None:
    covered = Covered((("/ws/a/.env", False),), (("/ws/a", True),), ("/ws/a",))
    box = Box(("/ws",), ("/opt/tool",), covered, Blanks("/c/file", "/c/folder"), False, "/home/me", "")
    line = wrapped(box, "bwrap", "/ws", ("true",))
    mounted = [line[at + 2] for at, word in enumerate(line) if word in ("--bind", "--ro-bind", "--bind-try")]
    assert mounted[-3:] == ["/ws", "/ws/a", "/ws/a/.env"]
    assert line[line.index("/ws/a/.env") - 1] == "/c/file"
    assert "--share-net" not in line


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("roots: []", ["shell.yaml:1: roots: has too few entries; expected at least 1"]),
        ("roots: [{name: a, path: .}]\nsandbox: docker", ["shell.yaml:2: sandbox: is none of"]),
        (
            "roots: [{name: a, path: nowhere}]\nread: [gone]",
            ["nowhere does not", "gone does not"],
        ),
        (
            "roots: [{name: a, path: .}, {name: a, path: .}]",
            ["roots[1].name: another root has the name 'a'; give"],
        ),
        ("roots: [{name: a, path: .}]\nenv: [GH_TOKEN]", ["env[0]: GH_TOKEN sounds like a secret"]),
        ("roots: [{name: a, path: /}]", ["contains, or is, a part of the system"]),
        ("roots: [{name: a, path: /usr/lib}]", ["contains, or is, a part of the system"]),
        ("roots: [{name: a, path: .}]\nhide: ['[z-a]']", ["'[z-a]' is not a pattern"]),
        (
            "roots: [{name: a, path: .}]\nlimits: {memory: 1}",
            ["limits.memory: is too small"],
        ),
        ("[]", ["shell.yaml:1: expected keys at the top level, such as roots: [{name"]),
        ("\n{", ["shell.yaml:3: not valid YAML"]),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said_at_once(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    (tmp_path / "shell.yaml").write_text(text)
    with pytest.raises(Unusable) as raised:
        loaded(tmp_path / "shell.yaml")
    for problem in problems:
        assert problem in str(raised.value)


def test_paths_of_the_configuration_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "shell.yaml").write_text("roots: [{name: a, path: ws}]\nread: [ws]")
    settings = loaded(tmp_path / "shell.yaml")
    assert settings.roots[0].path == str(tmp_path / "ws")
    assert settings.readable == (os.path.realpath(tmp_path / "ws"),)


def test_a_folder_whose_path_is_no_text_is_a_root(tmp_path: Path) -> None:
    folder = tmp_path / "bad\udcff"
    folder.mkdir()
    settings = checked(ShellSettings.model_construct(roots=roots_of([str(folder)])))
    for root in opened(settings):
        assert (root.name, root.where) == ("bad\\xff", os.path.realpath(folder))
        os.close(root.folder)


def test_a_configuration_in_a_folder_whose_path_is_no_text_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "bad\udcff"
    folder.mkdir()
    (folder / "shell.yaml").write_text("roots: [{name: a, path: .}]\nread: [.]")
    settings = loaded(folder / "shell.yaml")
    for root in opened(settings):
        assert root.where == os.path.realpath(folder)
        os.close(root.folder)


def test_the_page_about_it_lists_every_key_with_its_default(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "shell.md").read_text()
    text = textwrap.dedent(page.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "work").mkdir()
    (tmp_path / "shell.yaml").write_text(text.replace('["~/.cache/uv"]', "[]"))
    settings = loaded(tmp_path / "shell.yaml")
    assert set(yaml.safe_load(text)) == set(ShellSettings.model_fields)
    lists = {"roots", "read", "env", "hide", "freeze"}
    usual = ShellSettings(roots=settings.roots)
    assert settings.model_dump(exclude=lists) == usual.model_dump(exclude=lists)
