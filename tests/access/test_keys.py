"""The file of keys, and the commands that change it."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.access import keys
from mesh.core.errors import BadRequest, ConfigError, Conflict, MeshError

MESH = str(Path(sys.executable).parent / "mesh")


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [MESH, "key", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_key_is_printed_once_and_the_file_has_its_hash_alone(tmp_path: Path) -> None:
    made = run("new", "ann", folder=tmp_path)
    key = made.stdout.strip()
    assert (made.returncode, re.fullmatch(r"mk_[A-Za-z0-9_-]{43}\n", made.stdout) is not None) == (0, True)
    assert key not in made.stderr and "keys.yaml" in made.stderr
    file = tmp_path / "keys.yaml"
    text = file.read_text()
    assert hashlib.sha256(key.encode()).hexdigest() in text
    assert key not in text and key.removeprefix("mk_") not in text
    assert file.stat().st_mode & 0o777 == 0o600
    again = run("new", "ann", folder=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == (
        "mesh: keys.yaml: ann has a key already; revoke it first, or choose another name\n"
    )
    assert file.read_text() == text


def test_keys_are_listed_by_name_and_revoked_by_name(tmp_path: Path) -> None:
    for name in ("ann", "bob@example.com"):
        assert run("new", name, "--file", "k.yaml", folder=tmp_path).returncode == 0
    listed = run("list", "--file", "k.yaml", folder=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["ann", "bob@example.com"]
    assert run("revoke", "ann", "--file", "k.yaml", folder=tmp_path).returncode == 0
    assert [key.name for key in keys.load(tmp_path / "k.yaml")] == ["bob@example.com"]
    missing = run("revoke", "ann", "--file", "k.yaml", folder=tmp_path)
    assert (missing.returncode, missing.stderr) == (1, "mesh: k.yaml: nobody by the name 'ann' has a key\n")
    assert run("revoke", "bob@example.com", "--file", "k.yaml", folder=tmp_path).returncode == 0
    empty = run("list", "--file", "k.yaml", folder=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert (
        run("list", folder=tmp_path).stderr
        == "mesh: keys.yaml: there is no such file; mesh key new NAME makes it, --file names another\n"
    )


def test_keys_that_are_made_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    names = [f"client-{number}" for number in range(8)]
    started = [
        subprocess.Popen([MESH, "key", "new", name], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    made = [process.communicate(timeout=100)[0].strip() for process in started]
    found = {key.name: key.sha256 for key in keys.load(tmp_path / "keys.yaml")}
    assert found == {name: keys.hashed(key) for name, key in zip(names, made, strict=True)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.yaml", "keys.yaml.lock"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a\n", "é", "x" * 64, '"'])
def test_a_name_is_plain_and_short(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="a name is 1 to 63"):
        keys.add(tmp_path / "keys.yaml", name)


def test_the_name_of_the_mesh_itself_is_nobody_elses(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="the mesh's own"):
        keys.add(tmp_path / "keys.yaml", "mesh")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("key: []", "keys.yaml:1: keys: is missing; it is required"),
        ("keys:\n- {name: a}\n", "keys.yaml:2: keys[0].sha256: is missing; it is required"),
        ("keys:\n- {name: a, sha256: abc}\n", "keys.yaml:2: keys[0].sha256: does not fit; expected text"),
        (f"keys:\n- {{name: a b, sha256: {'a' * 64}}}\n", "keys.yaml:2: keys[0].name: does not fit"),
        ("keys: ]", "keys.yaml:1: not valid YAML"),
        ("- a\n", "keys.yaml:1: config: is a list; expected a mapping"),
    ],
)
def test_a_broken_file_is_reported_with_its_line_and_left_as_it_is(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    for change in (keys.add, keys.revoke):
        with pytest.raises(ConfigError) as raised:
            change(file, "ann")
        assert raised.value.problems[0].removeprefix(f"{tmp_path}/").startswith(problem)
    assert file.read_text() == text


def test_an_empty_file_takes_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("# nobody yet\n")
    keys.add(tmp_path / "keys.yaml", "ann")
    assert [key.name for key in keys.load(tmp_path / "keys.yaml")] == ["ann"]


def test_what_somebody_wrote_by_hand_stays_readable(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- name: bob\n  sha256: '{'1' * 64}'\n  created: 'by \"me\": #1 \\ é'\n")
    before = keys.load(file)
    keys.add(file, "ann")
    assert keys.load(file)[:1] == before


def test_a_repeated_name_is_reported() -> None:
    text = "".join(f"- {{name: a, sha256: '{digit * 64}'}}\n" for digit in "12")
    with pytest.raises(ConfigError, match="the name a is there twice"):
        keys.parse(f"keys:\n{text}", "keys.yaml")


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "keys.yaml"
    real.write_text("keys: []\n")
    real.chmod(0o640)
    link.symlink_to(real)
    keys.add(link, "ann")
    assert link.is_symlink() and [key.name for key in keys.load(real)] == ["ann"]
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_missing_permission_to_write_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match=r"keys\.yaml\.lock: cannot be written"):
        keys.add(tmp_path / "nowhere" / "keys.yaml", "ann")
    (tmp_path / "keys.yaml").symlink_to(tmp_path / "nowhere" / "keys.yaml")
    with pytest.raises(MeshError, match="cannot be written"):
        keys.add(tmp_path / "keys.yaml", "ann")
    assert not (tmp_path / "nowhere").exists()
