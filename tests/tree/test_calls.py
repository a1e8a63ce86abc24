"""What is kept of a result."""

import pytest

from mesh.core.events import Artifact
from mesh.tree.calls import bounded, fitting

FILE = Artifact("a.txt", "text/plain", data="x" * 85)  # 100 characters in all


@pytest.mark.parametrize(("room", "kept"), [(-1, 0), (99, 0), (100, 1), (299, 2), (300, 3)])
def test_files_are_kept_as_long_as_there_is_room(room: int, kept: int) -> None:
    assert fitting([FILE] * 3, room) == (FILE,) * kept


@pytest.mark.parametrize(
    "large",
    [
        Artifact("x" * 201),
        Artifact("x", media_type="y" * 200),
        Artifact("x", url="y" * 200),
        Artifact("x", data="y" * 200),
    ],
)
def test_a_file_takes_room_by_all_that_it_says(large: Artifact) -> None:
    assert fitting([large], 200) == ()


def test_a_file_that_is_too_large_leaves_room_for_smaller_ones() -> None:
    assert fitting([FILE, Artifact("x" * 500), FILE], 200) == (FILE, FILE)


def test_a_text_is_cut_between_characters_and_says_so() -> None:
    assert bounded("äöü", 6) == "äöü"
    assert bounded("äöü", 5) == "äö\n[cut: 6 bytes in all, 5 kept]"
