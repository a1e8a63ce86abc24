"""Journals in files: which one an id means, and what is appended while somebody looks."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mesh.core.errors import MeshError, NotFound
from mesh.core.events import UserMessage, encode
from mesh.journal.portable import Fault, Reader
from mesh.log.journal_files import LogEntry, followed, journal_file

LINES = [encode(UserMessage(seq=seq, turn=seq, text=f"m{seq}")) + b"\n" for seq in range(1, 6)]


class TestFinding:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for id in ("abc1", "abc2", "abc", "d*"):
            (tmp_path / f"conversation_{id}.jsonl").touch()
        (tmp_path / "conversation_f.json").touch()
        return tmp_path

    @pytest.mark.parametrize(("wanted", "found"), [("abc1", "abc1"), ("abc", "abc"), ("d", "d*")])
    def test_an_id_or_its_beginning_means_one_conversation(
        self, folder: Path, wanted: str, found: str
    ) -> None:
        assert journal_file(wanted, folder) == folder / f"conversation_{found}.jsonl"

    def test_what_several_begin_with_lists_them(self, folder: Path) -> None:
        with pytest.raises(
            NotFound, match=r"(?s)3 conversations .* begin with a; which one\?\n  abc\n  abc1\n  abc2$"
        ):
            journal_file("a", folder)

    @pytest.mark.parametrize("wanted", ["x", "f", "*", "../abc", "abc1.jsonl", "\x1b[2J"])
    def test_what_is_not_there_says_where_it_looked(self, folder: Path, wanted: str) -> None:
        with pytest.raises(NotFound) as caught:
            journal_file(wanted, folder)
        assert f"in {folder}/ (4 others are there)" in str(caught.value)
        assert "\x1b" not in str(caught.value)

    def test_a_folder_that_is_not_there_is_said_to_be_none(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="No such file or directory; --data-dir"):
            journal_file("a", tmp_path / "none")


class TestFollowing:
    """Each pause of the follower is a step of the test: nothing here waits."""

    @pytest.fixture
    def journal(self, tmp_path: Path) -> Path:
        path = tmp_path / "j.jsonl"
        path.write_bytes(b"".join(LINES[:2]))
        return path

    def follow(self, path: Path, *steps: Callable[[], object]) -> tuple[list[list[int]], list[Fault]]:
        """The sequence numbers of each batch, with a step done at each pause; removes the file after them."""
        todo, faults = [*steps, path.unlink], list[Fault]()
        batches: list[list[int]] = []
        with closing(followed(path, Reader(faults.append), lambda seconds: todo.pop(0)())) as found:
            assert isinstance(found, Iterator)
            with pytest.raises(MeshError, match="was removed"):
                while True:
                    batches.append([entry.event.seq for entry in next(found) if isinstance(entry, LogEntry)])
        return batches, faults

    def test_what_is_there_comes_first_then_what_is_appended(self, journal: Path) -> None:
        def append(lines: list[bytes]) -> Callable[[], object]:
            def step() -> None:
                with journal.open("ab") as file:
                    file.write(b"".join(lines))

            return step

        assert self.follow(journal, append(LINES[2:3]), lambda: None, append(LINES[3:])) == (
            [[1, 2], [3], [4, 5]],
            [],
        )

    def test_a_line_counts_when_it_is_whole(self, journal: Path) -> None:
        whole = journal.read_bytes()
        first, second = LINES[2][:20], LINES[2][20:]
        steps = [
            lambda: journal.write_bytes(whole + first),
            lambda: journal.write_bytes(whole + first + second),
        ]
        assert self.follow(journal, *steps) == ([[1, 2], [], [3]], [])

    def test_a_torn_end_that_a_new_writer_cut_off_is_forgotten(self, journal: Path) -> None:
        whole = journal.read_bytes()
        steps = [
            lambda: journal.write_bytes(whole + b'{"type":"user_mes'),
            lambda: journal.write_bytes(whole + LINES[2]),
            lambda: journal.write_bytes(whole),
            lambda: journal.write_bytes(whole + LINES[2] + LINES[3]),
        ]
        batches, faults = self.follow(journal, *steps)
        assert [seq for batch in batches for seq in batch] == [1, 2, 3, 4]
        assert len(faults) == 1  # the third event was there before: it was shown, and is not shown again

    def test_damage_is_told_once_with_its_line(self, journal: Path) -> None:
        whole = journal.read_bytes()
        steps = [
            lambda: journal.write_bytes(whole + b"?\n"),
            lambda: journal.write_bytes(whole + b"?\n" + LINES[3]),
        ]
        batches, faults = self.follow(journal, *steps)
        assert batches == [[1, 2], [], [4]]
        assert [fault.line for fault in faults] == [3]
