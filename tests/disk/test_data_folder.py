"""What a workspace brings along is not taken for this user's own data."""

from pathlib import Path

import pytest

from mesh.disk.data_folder import ForeignData, make_data_folder, trust, user_state
from mesh.disk.holder import Holder, held


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "state" / "data_folders"


@pytest.fixture
def own(tmp_path: Path, known: Path) -> Path:
    """A data folder that this user has made, with something in it."""
    folder = tmp_path / "workspace" / ".mesh"
    make_data_folder(folder, known)
    (folder / "journal").touch()
    return folder


def test_the_state_of_a_user_is_where_the_xdg_specification_wants_it() -> None:
    at_home = Path("~/.local/state/mesh").expanduser()
    assert user_state({"XDG_STATE_HOME": "/state"}) == Path("/state/mesh")
    assert user_state({"XDG_STATE_HOME": "not/absolute"}) == user_state({}) == at_home


def test_a_folder_that_this_user_has_made_is_used_again_wherever_it_was_moved(own: Path, known: Path) -> None:
    make_data_folder(own, known)
    moved = own.parent.rename(own.parent.with_name("moved")) / ".mesh"
    make_data_folder(moved, known)
    assert (moved / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    "name", [None, "", "0" * 32, "../data_folders", "origin\n" * 1000, "\N{SNOWMAN}" * 32]
)
def test_a_folder_that_came_with_the_workspace_is_refused(
    tmp_path: Path, known: Path, name: str | None
) -> None:
    planted = tmp_path / ".mesh"
    (planted / "configs").mkdir(parents=True)
    if name is not None:
        (planted / "origin").write_text(name)
    for data_dir in (planted, planted / "agent"):
        with pytest.raises(ForeignData, match=r"was not made by you on this machine.*run: mesh trust "):
            make_data_folder(data_dir, known)
    assert not (planted / "agent").exists()


def test_another_user_does_not_know_it(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ForeignData):
        make_data_folder(own, tmp_path / "state of another")


def test_one_that_is_trusted_is_used(tmp_path: Path, known: Path) -> None:
    planted = tmp_path / ".mesh"
    (planted / "configs").mkdir(parents=True)
    trust(planted, known)
    make_data_folder(planted, known)


def test_a_link_in_its_place_is_refused(own: Path, known: Path, tmp_path: Path) -> None:
    (tmp_path / ".mesh").symlink_to(own)
    with pytest.raises(ForeignData, match="is a link"):
        make_data_folder(tmp_path / ".mesh", known)


def test_a_link_in_the_place_of_its_name_is_refused(own: Path, known: Path) -> None:
    (own / "origin").rename(own / "elsewhere")
    (own / "origin").symlink_to("elsewhere")
    with pytest.raises(ForeignData, match="origin"):
        make_data_folder(own, known)


def test_an_empty_folder_is_taken_over(tmp_path: Path, known: Path) -> None:
    (tmp_path / ".mesh").mkdir()
    (tmp_path / ".mesh" / ".gitignore").write_text("*\n")
    make_data_folder(tmp_path / ".mesh", known)


def test_data_outside_of_workspaces_may_come_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "data" / "configs").mkdir(parents=True)
    with held(tmp_path / "data", Holder("mesh up")):
        pass


def test_who_holds_a_data_directory_has_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with held(tmp_path / ".mesh", Holder("mesh up")):
        pass
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of another"))
    with pytest.raises(ForeignData), held(tmp_path / ".mesh", Holder("mesh up")):
        pass
