"""What was typed is kept for its owner alone, and not for ever."""

import stat
from pathlib import Path

from prompt_toolkit.history import InMemoryHistory

from mesh.chat.input_history import MAX_ENTRIES, open_history


def typed(path: Path) -> list[str]:
    return list(open_history(path).load_history_strings())


def test_only_its_owner_can_read_it_even_where_it_was_open_before(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat_history"
    open_history(path).append_string("hello")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    open_history(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_typed_comes_back_newest_first(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    for line in ("one", "two\nlines"):
        history.append_string(line)
    assert typed(tmp_path / "h") == ["two\nlines", "one"]


def test_the_token_is_not_kept(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h", "s3cret")
    history.append_string("use s3cret please")
    history.append_string("hello")
    assert typed(tmp_path / "h") == ["hello"]
    assert "s3cret" not in (tmp_path / "h").read_text()


def test_it_keeps_the_newest_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    for number in range(MAX_ENTRIES + 50):
        history.append_string(f"line {number}")
    kept = typed(tmp_path / "h")
    assert (len(kept), kept[0], kept[-1]) == (MAX_ENTRIES, f"line {MAX_ENTRIES + 49}", "line 50")


def test_without_a_place_to_write_there_is_one_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(open_history(tmp_path / "file" / "h"), InMemoryHistory)
