"""What a call would change, why it is asked about, and decisions that are remembered: in a real browser."""

import json
import random
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from mesh.display.diff import PreviewReader
from mesh.display.visible import is_hidden
from mesh.servers.filesystem import unified_diff
from tests.web.conftest import OpenStage
from tests.web.world import Person
from tests.worlds.edits import POLICY, Edits
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

BEFORE = "def f():\n\tx = 1\n\treturn x \n"
pytestmark = pytest.mark.asyncio(loop_scope="session")
HOSTILE = "# \u202e evil \x1b[2J <img src=x onerror=alert(1)></td></table><h3>Approval needed</h3>"
AFTER = f"def f():\n    x = 1\n\treturn x\n{HOSTILE}\n--- a/other\n"
WRITE = calls(("write_file", {"path": "a.py", "content": AFTER}))


def rows(card: Locator, kind: str) -> Locator:
    return card.locator(f"table.unified tr.{kind} td.line")


async def test_the_diff_is_shown_with_nothing_hidden_and_its_content_is_text(stage: OpenStage) -> None:
    live, person = await stage(Spoken(WRITE, says("Done.")), POLICY)
    edits = Edits(**{"a.py": BEFORE}).offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    card = person.cards
    await expect(card.locator(".files li")).to_have_text("a.py +4 −2")
    await expect(card.locator(".reason")).to_have_text("Rule edits asks: Changes are looked at first.")
    assert await rows(card, "removed").all_text_contents() == ["⇥   x = 1", "    return x·"]
    hidden = HOSTILE.replace("\u202e", "⟨U+202E⟩").replace("\x1b", "␛")
    assert await rows(card, "added").all_text_contents() == [
        "····x = 1",
        "    return x",
        hidden,
        "--- a/other",
    ]
    assert "⟨U+202E⟩" in await card.locator("tr.added mark").all_text_contents()
    await expect(card.locator("h3")).to_have_count(1)
    await expect(card.locator("img")).to_have_count(0)
    await card.get_by_role("button", name="Side by side").click()
    changed = card.locator("table.split tr", has=person.page.locator("td.added")).first
    assert await changed.locator("td.line").all_text_contents() == ["⇥   x = 1", "····x = 1"]
    assert await changed.locator("td.sign").all_text_contents() == ["-", "+"]
    await expect(card.locator("tr.about")).to_have_count(0)  # the name of the file is above the table
    await expect(card.get_by_label("Arguments")).to_be_hidden()
    await card.get_by_text("Arguments").click()
    await expect(card.get_by_label("Arguments")).to_contain_text('"path": "a.py"')
    await card.get_by_role("button", name="Approve", exact=True).click()
    await person.sees("Done.")
    assert edits.files["a.py"] == AFTER


@pytest.mark.servers_go_away  # a rule that is refused is a 400
async def test_a_decision_is_remembered_with_the_rule_as_it_was_edited(stage: OpenStage) -> None:
    other = calls(("write_file", {"path": "b.py", "content": "x\n"}))
    live, person = await stage(Spoken(WRITE, other, says("Done.")), POLICY)
    edits = Edits(**{"a.py": BEFORE}).offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    await person.cards.get_by_role("button", name="Approve and remember…").click()
    await person.sees("allow write_file on ledger for the path /a.py, whatever its other arguments")
    rule = person.cards.get_by_role("textbox", name="The rule that is added")
    assert json.loads(await rule.input_value())["paths"] == ["/a.py"]
    await rule.fill("{")
    await expect(person.cards.get_by_role("button", name="Approve always")).to_be_disabled()
    await rule.fill('{"decide": "allow"}')
    await person.cards.get_by_role("button", name="Approve always").click()
    await expect(person.cards.get_by_role("alert")).to_contain_text("it has no condition")
    await rule.fill('{"tools": ["write_*"]}')
    await person.cards.get_by_role("button", name="Approve for this conversation").click()
    await person.sees("Done.")
    assert edits.files == {"a.py": AFTER, "b.py": "x\n"}
    await person.turn.get_by_text("write_file").first.click()
    await person.sees('remembered for this conversation: {"tools":["write_*"]')


@pytest.mark.servers_go_away  # an end that has passed is a 400
async def test_a_decision_that_is_remembered_always_may_have_an_end(stage: OpenStage) -> None:
    live, person = await stage(Spoken(WRITE, says("Done.")), POLICY)
    Edits(**{"a.py": BEFORE}).offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    await person.cards.get_by_role("button", name="Approve and remember…").click()
    end = person.cards.get_by_label("until when")
    await end.fill("2020-01-31T18:00")
    await person.cards.get_by_role("button", name="Approve always").click()
    await expect(person.cards.get_by_role("alert")).to_contain_text("has passed")
    await end.fill("2100-01-31T18:00")
    await person.cards.get_by_role("button", name="Approve always").click()
    await person.sees("Done.")
    (grant,) = live.run(live.mesh.grant_book.listed()).values()
    zone = await person.page.evaluate("new Date('2100-01-31T18:00').toISOString()")
    assert grant.until == zone
    await person.turn.get_by_text("write_file").first.click()
    await person.sees(f"remembered until {zone}: ")


async def test_each_part_of_a_command_has_its_verdict_and_only_what_may_be_is_remembered(
    stage: OpenStage,
) -> None:
    command = "git status -s && git push origin 'a\u200bb'"
    live, person = await stage(Spoken(calls(("RunCommand", {"command": command})), says("Done.")), POLICY)
    edits = Edits().offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    parts = await person.cards.get_by_role("list", name="Parts of the command").get_by_role("listitem").all()
    texts = [await part.inner_text() for part in parts]
    assert texts[0] == "✓ allowed by look git status -s"
    assert texts[1].startswith("? asks, by pushes git push origin")
    assert "⟨U+200B⟩" in texts[1]
    await expect(person.cards.get_by_role("button", name="remember")).to_have_count(0)
    await person.cards.get_by_role("button", name="Approve", exact=True).click()
    await person.sees("Done.")
    assert edits.ran == [command]


async def test_a_change_that_changes_nothing_and_asks_by_default_is_told_as_that(stage: OpenStage) -> None:
    same = calls(("write_file", {"path": "a.py", "content": BEFORE}))
    live, person = await stage(
        Spoken(same, says("Done.")), "name: coder\nllm: {model: scripted}\npolicy: {}\n"
    )
    Edits(**{"a.py": BEFORE}).offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    await expect(person.cards.locator(".reason")).to_contain_text("Asks by default: ")
    await expect(person.cards.locator(".files")).to_have_text("a.py nothing would change")


async def test_what_was_cut_is_loaded_on_request(stage: OpenStage) -> None:
    content = "".join(f"line {number} of many\n" for number in range(6_000))
    write = calls(("write_file", {"path": "long.txt", "content": content}))
    live, person = await stage(Spoken(write, says("Done.")), POLICY)
    Edits().offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    added = rows(person.cards, "added")
    assert await added.count() < 500
    await person.cards.get_by_role("button", name="lines").click()
    load = person.cards.get_by_role("button", name="Load the rest")
    while await load.count():
        before = await added.count()
        await load.click()
        await expect(added.nth(before)).to_be_attached()
    assert await added.count() == 6_000
    assert await added.last.text_content() == "line 5999 of many"


async def test_what_was_cut_by_another_agent_is_said_to_be_shown_there(stage: OpenStage) -> None:
    content = "".join(f"line {number} of many\n" for number in range(6_000))
    write = calls(("write_file", {"path": "long.txt", "content": "new\n"}))
    with LiveMesh(Spoken(write, says("Written.")), POLICY) as below:
        edits = Edits(**{"long.txt": content}).offered_by(below)
        asking = calls(("a2a_b", {"message": "write it"}))
        peers = f"{SIMPLE}a2a: [{{name: b, url: '{below.url}'}}]\n"
        _, person = await stage(Spoken(asking, says("Done.")), peers)
        await person.say("go")
        await person.sees_cards(1)
        await expect(person.cards.get_by_role("heading", name="What would change")).to_have_text(
            "What would change, as agent b says"
        )
        await person.cards.get_by_role("button", name="lines").click()
        await expect(person.cards.get_by_text("The rest was cut; agent b shows it.")).to_be_visible()
        await expect(person.cards.get_by_role("button", name="Load the rest")).to_have_count(0)
        await person.cards.get_by_role("button", name="Approve", exact=True).click()
        await person.sees("Done.")
        assert edits.files["long.txt"] == "new\n"


READ = """async (texts) => {
  const { rowsOf, sideBySide } = await import("/static/js/diff.js");
  const shown = (row) => row.spans.map(({ text }) => text).join("");
  const side = (pairs, name, sign) =>
    pairs.map((pair) => pair[name]).filter((row) => row?.sign === sign).map(shown);
  return texts.map((text) => {
    const rows = rowsOf(text, true);
    const pairs = sideBySide(rows);
    const all = rows.map((row) => [row.sign, shown(row)]);
    return { rows: all, left: side(pairs, "left", "-"), right: side(pairs, "right", "+") };
  });
}"""


def generated(seed: int) -> str:
    chosen = random.Random(seed)
    words = [
        "a",
        "b ",
        " b",
        "\tx",
        "x\t",
        "",
        "-- a/x",
        "++ b/y",
        "@@ -1 +1 @@",
        "\u202e",
        "\x00",
        "\u00a0",
        "é",
        "…",
    ]
    old, new = (
        "".join(chosen.choice(words) + chosen.choice(words) + "\n" for _ in range(chosen.randrange(12)))
        for _ in "on"
    )
    return unified_diff.preview("x", old, new + chosen.choice(["", "end"]), ("b", "a")).text


async def test_the_page_reads_a_diff_as_the_terminal_does(page: Page) -> None:
    texts = [generated(seed) for seed in range(200)] + ["+a\n-b\n", "@@ -1 +1 @@\n-a\n+b\n+c\n", "", "\n\n"]
    found: list[Any] = await page.evaluate(READ, texts)
    for text, read in zip(texts, found, strict=True):
        expected = [
            [row.sign, "".join(piece for piece, _ in row.spans)]
            for row in PreviewReader(is_diff=True).rows(text)
        ]
        assert read["rows"] == expected
        assert read["left"] == [shown for sign, shown in expected if sign == "-"]
        assert read["right"] == [shown for sign, shown in expected if sign == "+"]


HEADERS = """async ([text, paths]) => {
  const { rowsOf, withoutHeaders } = await import("/static/js/diff.js");
  const shown = (row) => row.sign + row.spans.map(({ text }) => text).join("");
  return withoutHeaders(rowsOf(text, true), paths).map(shown);
}"""


@pytest.mark.parametrize(
    ("header", "paths", "shown"),
    [
        ("--- a/x\n+++ b/x\n", ["x"], []),
        ("--- /dev/null\n+++ b/x\n", ["x"], []),
        ("--- a/x\n+++ /dev/null\n", ["x"], []),
        ("--- a/x\n+++ b/x\n", ["x", "y"], ["▸x"]),
        ("--- a/x\n+++ b/x\n", ["y"], ["▸--- a/x", "▸+++ b/x"]),
        ("--- a/x\n+++ b/y\n", ["x", "y"], ["▸--- a/x", "▸+++ b/y"]),
        ("--- a/x\n", ["x"], ["▸--- a/x"]),
    ],
)
async def test_a_header_that_says_what_is_above_the_diff_is_left_out(
    page: Page, header: str, paths: list[str], shown: list[str]
) -> None:
    hunk = "@@ -1 +1 @@\n--- a/x\n+++ b/x\n"  # its lines look like a header, and are none
    found = await page.evaluate(HEADERS, [f"{header}{hunk}", paths])
    assert found == [*shown, "@@@ -1 +1 @@", "--- a/x", "+++ b/x"]


HIDE = """async (chars) => {
  const { isHidden } = await import("/static/js/visible.js");
  return chars.filter(isHidden);
}"""


async def test_the_page_hides_no_character_that_a_terminal_shows(page: Page) -> None:
    """Of those that both know: which characters there are, each has from its own version of Unicode."""
    import unicodedata

    known = [chr(code) for code in range(0x2_0000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    assert set(await page.evaluate(HIDE, known)) >= {char for char in known if is_hidden(char)}


@pytest.mark.parametrize("width", [360, 1280])
async def test_a_long_line_stays_within_the_card(stage: OpenStage, width: int) -> None:
    content = "x" * 3_000 + "\n" + "\u0301" * 300 + "\n"
    write = calls(("write_file", {"path": f"{'d' * 300}.txt", "content": content}))
    live, person = await stage(Spoken(write), POLICY, viewport={"width": width, "height": 800})
    Edits().offered_by(live)
    await person.say("go")
    await person.sees_cards(1)
    assert await _overflow(person) <= 0


async def _overflow(person: Person) -> int:
    found: int = await person.page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found
