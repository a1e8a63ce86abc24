"""``custom: module:function`` in a policy: kept with its config, checked before anything starts."""

import asyncio
import os
from pathlib import Path

import pytest

from mesh.config.custom_policy import custom_of, custom_problems
from mesh.config.model import Config, load, parse
from mesh.core.errors import ConfigError
from mesh.core.hints import Hints
from mesh.policy.custom import PolicyCall, PolicyContext, Verdict, deny
from tests.cli.test_cli import mesh

ALLOWED = Verdict("allowed", "default", "No rule decides.")
CALL = PolicyCall(agent="a", node="n", kind="mcp", tool="t", hints=Hints(True, False))
CONFIG = "name: a\npolicy:\n  default: ask\n  custom: judges_of_test:judge\n"
JUDGE = """
from mesh.policy.custom import deny

async def judge(call, context):
    return deny("as the file says")
"""


def asked(config: Config) -> Verdict | None:
    custom = custom_of(config)
    assert custom is not None
    return asyncio.run(custom.answer(CALL, PolicyContext(verdict=ALLOWED)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "judges_of_test.py").write_text(JUDGE)
    path = tmp_path / "a.yaml"
    path.write_text(CONFIG)
    return path


def test_a_config_without_it_has_none() -> None:
    for text in ("name: a\n", "name: a\npolicy: {default: ask}\n"):
        config = parse(text, "a.yaml", {})
        assert (custom_of(config), [*custom_problems(config)]) == (None, [])


def test_a_file_beside_the_config_is_kept_with_it_and_is_a_part_of_the_version(path: Path) -> None:
    config = load(path, os.environ)
    assert [*custom_problems(config)] == []
    assert asked(config) == deny("as the file says")
    (path.parent / "judges_of_test.py").write_text(JUDGE.replace("the file", "another"))
    assert load(path, os.environ).digest != config.digest
    # Another process, on a machine without the file:
    (path.parent / "judges_of_test.py").unlink()
    again = parse(config.source, "elsewhere/a.yaml", os.environ, config.files)
    assert (asked(again), again.digest) == (deny("as the file says"), config.digest)


def test_without_such_a_file_the_module_is_an_installed_one(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(CONFIG.replace("judges_of_test:judge", "mesh.policy.call_command:command_of_call"))
    config = load(path, os.environ)
    assert dict(config.files) == {}
    [problem] = custom_problems(config)
    assert "command_of_call takes other arguments" in problem
    again = parse(config.source, str(path), os.environ, config.files)
    assert asked(again) is not None


@pytest.mark.parametrize(
    "reference", ["judge", "a.py:judge", "a:", ":b", "a b:c", "a:b:c", "../a:b", "a:b.c", ""]
)
def test_what_is_no_reference_is_refused_with_its_line(reference: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(CONFIG.replace("judges_of_test:judge", f'"{reference}"'), "a.yaml", {})
    expected = "is not right; expected module:function, such as policies:judge"
    assert caught.value.problems == [f"a.yaml:4: policy.custom: {expected}"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (
            "\ndef judge(call, context): ...\n",
            2,
            "judge is not async; expected async def judge(call, context)",
        ),
        ("\n\nimport nothing_of_this_name\n", 3, "cannot be imported: ModuleNotFoundError: No module named"),
        ("import os\nos._exit(3)\n", 1, "cannot be imported: its process ended with code 3"),
        ("print('noise')\nraise SystemExit('x')\n", 2, "cannot be imported: SystemExit"),
    ],
)
def test_mesh_check_refuses_what_cannot_be_asked_with_the_line_of_both(
    path: Path, text: str, line: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "judges_of_test.py").write_text(text)
    monkeypatch.chdir(path.parent)
    run = mesh("check", "a.yaml")
    assert run.exit_code == 2
    begins = f"mesh: a.yaml:4: policy.custom: judges_of_test.py:{line}: "
    assert run.stderr.startswith(begins) and problem in run.stderr, run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_module_that_is_not_there_is_a_problem_of_the_config(path: Path) -> None:
    (path.parent / "judges_of_test.py").unlink()
    run = mesh("check", path)
    problem = "there is no module judges_of_test: it is neither installed nor a file beside the config"
    assert (run.exit_code, run.stderr) == (2, f"mesh: {path}:4: policy.custom: {problem}\n")


def test_an_import_that_hangs_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.config.custom_policy.IMPORT_TIMEOUT_S", 1.0)
    (path.parent / "judges_of_test.py").write_text("import time\ntime.sleep(100)\n")
    [problem] = custom_problems(load(path, os.environ))
    assert "it did not end within 1 s" in problem


def test_mesh_check_is_fine_with_one_that_is_right_and_says_nothing_it_prints(path: Path) -> None:
    (path.parent / "judges_of_test.py").write_text("print('noise')\n" + JUDGE)
    run = mesh("check", path)
    assert (run.exit_code, "noise" in run.output, f"{path}: fine" in run.stdout) == (0, False, True), (
        run.output
    )
