"""The secret of a mesh: one for all of its processes, and nobody else's."""

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.access.secret import FILE, mesh_secret
from mesh.core.errors import MeshError
from mesh.core.ids import id_for_key, is_id

MAKE = """import pathlib, sys
from mesh.access.secret import mesh_secret
print(mesh_secret(pathlib.Path(sys.argv[1])).hex())"""


def test_processes_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    command = [sys.executable, "-c", MAKE, str(folder)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    told = {process.communicate(timeout=60)[0] for process in started}
    assert told == {f"{mesh_secret(folder).hex()}\n"}
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600


def test_each_mesh_has_a_secret_of_its_own(tmp_path: Path) -> None:
    assert mesh_secret(tmp_path / "a") != mesh_secret(tmp_path / "b")
    assert len(mesh_secret(tmp_path / "a")) == 32


@pytest.mark.parametrize("content", ["abc", "zz" * 32, "ab" * 31, "ab" * 33, "ä" * 64])
def test_a_damaged_secret_is_reported_and_never_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(MeshError, match="is damaged; expected 64 hexadecimal digits") as raised:
        mesh_secret(tmp_path)
    assert content not in str(raised.value)


def test_an_id_made_from_what_a_client_says_is_the_same_for_the_mesh_alone() -> None:
    ids = {id_for_key(secret, key, caller) for secret in (b"1", b"2") for key in "ab" for caller in ("", "t")}
    assert len(ids) == 8 and all(map(is_id, ids))
    assert id_for_key(b"1", "a", "t") == id_for_key(b"1", "a", "t")
