"""What a call would change, and decisions that are remembered: at a real terminal, against a real mesh."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import LlmCall
from tests.chat.screen import CTRL_C, Screen, chat_env
from tests.worlds.edits import POLICY, Edits
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

BEFORE = "def f():\n\tx = 1\n\treturn x \n"
AFTER = "def f():\n    x = 1\n\treturn x\n# \u202e evil \x1b[2J\n? drop wants to run\n"
WRITE = calls(("write_file", {"path": "a.py", "content": AFTER}))
AGAIN = calls(("write_file", {"path": "a.py", "content": "new\n"}))
OTHER = calls(("write_file", {"path": "b.py", "content": "x\n"}))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return chat_env(tmp_path)


@pytest.fixture
def started() -> Iterator[list[LiveMesh]]:
    meshes: list[LiveMesh] = []
    yield meshes
    for mesh in meshes:
        mesh.__exit__(None, None, None)


def mesh_of(started: list[LiveMesh], *answers: LlmCall, policy: str = POLICY) -> tuple[LiveMesh, Edits]:
    mesh = LiveMesh(Spoken(*answers), policy)
    mesh.__enter__()
    started.append(mesh)
    return mesh, Edits(**{"a.py": BEFORE}).offered_by(mesh)


def test_the_diff_is_on_the_screen_before_the_decision_with_nothing_hidden_and_in_colour(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    mesh, edits = mesh_of(started, WRITE, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked("[v] view all ›")
        lines = screen.text.splitlines()
        for line in (
            "± a.py  +4 −2",
            "│- ⇥   x = 1",
            "│-     return x·",
            "│+ ····x = 1",
            "│+ # ⟨U+202E⟩ evil ␛[2J",
            "│+ ? drop wants to run",
            "§ rule edits asks: Changes are looked at first.",
        ):
            assert line in lines
        assert sum(line.startswith("? ") for line in lines) == 1
        assert "\x1b[32m│+ " in screen.raw and "\x1b[31m│- " in screen.raw
        assert not {"\u202e", "\x07"} & set(screen.raw)
        screen.press("v")
        screen.wait('"path": "a.py"')
        screen.asked("[v] view all ›")
        screen.press("a")
        screen.ready()
        assert edits.files["a.py"] == AFTER


def test_a_decision_that_is_remembered_is_not_asked_for_again_and_tells_its_rule(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    mesh, edits = mesh_of(started, WRITE, AGAIN, OTHER, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        allowed = "⊕ [c] or [l]: allow write_file on ledger for the path /a.py, whatever its other arguments"
        assert allowed in screen.text.splitlines()
        screen.press("c")
        screen.wait("the rule that is added for this conversation", '"paths": ["/a.py"]')
        screen.press("\r")
        screen.wait("remembered for this conversation: ", '"b.py"')
        screen.asked()
        assert edits.files == {"a.py": "new\n"}  # the second of them was not asked about, the third is
        assert sum(line.startswith("? ") for line in screen.text.splitlines()) == 2
        screen.press("r")
        screen.wait("reason")
        screen.press("\r")
        screen.ready()


def test_the_rule_is_edited_until_it_can_be_remembered(started: list[LiveMesh], env: dict[str, str]) -> None:
    mesh, edits = mesh_of(started, WRITE, OTHER, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        screen.press("c")
        screen.wait("the rule that is added for this conversation")
        screen.press("\x15no rule\r")
        screen.wait("✗ this is not JSON")
        screen.wait_until(lambda: screen.text.endswith("back): no rule"))
        screen.press('\x15{"decide": "allow"}\r')
        screen.wait("✗ rule: it has no condition")
        screen.asked()
        screen.press("c")
        screen.wait_until(lambda: screen.text.count("(Enter: approve, Ctrl-C: back)") == 3)
        screen.wait_until(lambda: screen.text.endswith('back): {"decide": "allow"}'))
        screen.press('\x15{"tools": ["write_*"]}\r')
        screen.wait("remembered for this conversation", "Done.")
        screen.ready()
        assert edits.files == {"a.py": AFTER, "b.py": "x\n"}


def test_ctrl_c_at_the_rule_goes_back_to_the_question(started: list[LiveMesh], env: dict[str, str]) -> None:
    mesh, edits = mesh_of(started, WRITE, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        screen.press("c")
        screen.wait("the rule that is added")
        screen.press(CTRL_C)
        screen.asked()
        assert edits.files == {"a.py": BEFORE}


def test_each_part_of_a_command_has_its_verdict_and_what_may_not_be_remembered_has_no_key(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    command = calls(("RunCommand", {"command": "git status -s && git push origin main"}))
    mesh, edits = mesh_of(started, command, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked("[a] approve  [r] reject  [e] edit arguments")
        lines = screen.text.splitlines()
        assert "$✓ allowed by look: git status -s" in lines
        assert "$? asks, by pushes: git push origin main" in lines
        assert "[c] or [l]" not in screen.text
        screen.press("cla")
        screen.ready()
        assert edits.ran == ["git status -s && git push origin main"]


def test_a_long_diff_fills_no_more_than_the_screen_and_is_viewed_page_by_page(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    content = "".join(f"line {number}\n" for number in range(700))
    write = calls(("write_file", {"path": "long.txt", "content": content}))
    mesh, _ = mesh_of(started, write, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        assert "… 703 lines in all; v shows them" in screen.text
        assert "? write_file" in screen.text
        screen.press("v")
        screen.asked("[space] more  [q] back")
        screen.press(" ")
        screen.wait("│+ line 300")
        screen.asked("[space] more  [q] back")
        assert "│+ line 600" not in screen.text
        screen.press("q")
        screen.asked()


def test_what_the_tool_has_cut_is_asked_for_when_the_person_comes_to_it(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    content = "".join(f"line {number} {'x' * 800}\n" for number in range(100))
    write = calls(("write_file", {"path": "long.txt", "content": content}))
    mesh, _ = mesh_of(started, write, says("Done."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        assert "and more; v shows them" in screen.text
        assert "│+ line 99 " not in screen.text
        screen.press("v")
        for _ in range(8):
            screen.asked("[space] more  [q] back")
            if "│+ line 99 " in screen.text:
                break
            seen = screen.text
            screen.press(" ")
            screen.wait_until(lambda before=seen: screen.text != before)  # type: ignore[misc]
        assert "│+ line 99 " in screen.text
        assert "cut by the tool" not in screen.text


def test_what_is_cut_of_the_diff_of_another_agent_is_said_to_be_there(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    write = calls(("write_file", {"path": "long.txt", "content": "new\n"}))
    below, edits = mesh_of(started, write, says("Written."))
    edits.files["long.txt"] = "".join(f"line {number} {'x' * 800}\n" for number in range(100))
    asking = calls(("a2a_b", {"message": "write it"}))
    top = LiveMesh(Spoken(asking, says("Done.")), f"{SIMPLE}a2a: [{{name: b, url: '{below.url}'}}]\n")
    started.append(top.__enter__())
    with Screen("--url", top.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        assert "± agent b says that it would do this:" in screen.text
        assert screen.text.count("agent b shows the rest, in its task ") == 1
        assert "and more; v shows them" not in screen.text
        seen = screen.text
        screen.press("v")
        for _ in range(8):
            screen.wait_until(lambda before=seen: screen.text != before and screen.text.endswith("›"))  # type: ignore[misc]
            if "│- line 80 " in screen.text:
                break
            seen = screen.text
            screen.press(" ")
        end = screen.text.rpartition("│- line 80 ")[2]
        assert "… agent b shows the rest, in its task " in end and "│- line" not in end
        screen.asked("[a] approve")
        screen.press("a")
        screen.ready()
        assert edits.files["long.txt"] == "new\n"


def test_what_is_remembered_always_is_not_asked_for_in_another_conversation(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    mesh, edits = mesh_of(started, WRITE, says("Done."), AGAIN, says("Done again."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.asked()
        screen.press("l")
        screen.wait("the rule that is added always")
        screen.press("\r")
        screen.wait("until when, such as ")
        screen.press("\r")
        screen.wait("remembered always: ", "Done.")
        screen.say("/new")
        screen.say("once more")
        screen.wait("Done again.")
        screen.ready()
        assert edits.files == {"a.py": "new\n"}


def test_what_is_remembered_always_may_have_an_end_in_the_time_of_the_terminal(
    started: list[LiveMesh], env: dict[str, str]
) -> None:
    mesh, _ = mesh_of(started, WRITE, says("Done."))
    with Screen("--url", mesh.url, env={**env, "TZ": "XXX-5"}) as screen:
        screen.say("go")
        screen.asked()
        for end, said in (("soon", "is no time with a zone"), ("2020-01-01", "has passed")):
            screen.press("l")
            screen.asked('"decide": "allow"}')
            screen.press("\r")
            screen.asked("for good, Ctrl-C: back):")
            screen.press(f"{end}\r")
            screen.wait(said)
            screen.asked()
        screen.press("l")
        screen.asked('"decide": "allow"}')
        screen.press("\r")
        screen.asked("for good, Ctrl-C: back):")
        screen.press("2100-01-31 18:00\r")
        screen.wait("remembered until 2100-01-31T13:00:00.000Z: ")
        screen.ready()
