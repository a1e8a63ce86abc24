"""Names that were probably meant."""

import pytest

from mesh.core.spelling import closest, meant, with_article


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("is_knwn", ["is_known", "is_item"], "is_known"),
        ("prot", ["prompt", "port"], "port"),
        ("sequentail", ["llm", "sequential", "agent"], "sequential"),
        ("x", ["port"], ""),
        ("x", [], ""),
    ],
)
def test_the_closest_name_is_offered_and_swapped_letters_are_closer_than_others(
    word: str, known: list[str], expected: str
) -> None:
    assert closest(word, known) == expected


def test_where_no_name_is_close_all_are_offered() -> None:
    assert meant("lok", ["look", "find"]) == "did you mean look?"
    assert meant("x", ["look", "find"]) == "expected one of: find, look"
    assert meant("x", []) == "there are none"


def test_a_noun_has_the_article_that_it_is_spoken_with() -> None:
    assert [with_article(each) for each in ("object", "Agent", "Provider")] == [
        "an object",
        "an Agent",
        "a Provider",
    ]
