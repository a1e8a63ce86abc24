"""Commands that run another command: ``env``, ``nice``, ``timeout``, ``xargs``, …

Options are read as the wrapper reads them. One that is not in the table, or that the shell computes, leaves
open where the command begins.
"""

import re
from typing import NamedTuple

from mesh.policy.commands import Expansion, Word, Words, names

FURTHER = Expansion("…")
"""What ``xargs`` appends."""


class Wrapper(NamedTuple):
    """``flags`` and ``valued`` are options without and with a value; ``operands`` stand before the command.
    A ``transparent`` one changes nothing about what the command may do."""

    flags: str = ""
    valued: str = ""
    operands: int = 0
    assignments: bool = False
    transparent: bool = True


class Unwrapped(NamedTuple):
    """The command that a wrapper runs, empty if it runs none. ``transparent``: its rights are the same."""

    words: Words = ()
    transparent: bool = True
    unclear: str = ""


WRAPPERS = {
    "builtin": Wrapper(),
    "busybox": Wrapper(transparent=False),
    "chrt": Wrapper("--all-tasks -a --batch -b --fifo -f --idle -i --other -o --rr -r", operands=1),
    "command": Wrapper("-p"),
    "doas": Wrapper("-n", "-u -C", transparent=False),
    "env": Wrapper("- -i --ignore-environment -0 --null -v --debug", "-u --unset", assignments=True),
    "exec": Wrapper("-c -l", "-a"),
    "ionice": Wrapper("-t --ignore", "-c --class -n --classdata"),
    "nice": Wrapper("", "-n --adjustment"),
    "nohup": Wrapper(),
    "setsid": Wrapper("-c --ctty -f --fork -w --wait"),
    "stdbuf": Wrapper("", "-i --input -o --output -e --error"),
    "sudo": Wrapper(
        "-A --askpass -b --background -E --preserve-env -H --set-home -k -n --non-interactive -P -S --stdin",
        "-g --group -h --host -p --prompt -u --user",
        assignments=True,
        transparent=False,
    ),
    "taskset": Wrapper("-a --all-tasks -c --cpu-list", operands=1),
    "time": Wrapper("-p --portability -q --quiet -v --verbose", "-f --format"),
    "timeout": Wrapper(
        "--foreground --preserve-status -v --verbose", "-k --kill-after -s --signal", operands=1
    ),
    "unbuffer": Wrapper("-p"),
    "xargs": Wrapper(
        "-0 --null -o --open-tty -r --no-run-if-empty -t --verbose -x --exit -p --interactive",
        "-a --arg-file -d --delimiter -E -I -L -n --max-args -P --max-procs -s --max-chars",
    ),
}

_ONLY_TELLS = {"command": {"-v", "-V"}, "sudo": {"-l", "-v", "-V", "-K"}, "ionice": {"-p"}, "taskset": {"-p"}}
"""Options with which a wrapper runs nothing."""

_HARMLESS = names(
    "LANG LANGUAGE TZ TERM COLUMNS LINES CI NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE "
    "PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE RUST_BACKTRACE"
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_LOWER = re.compile(r"[a-z_][a-z0-9_]*")
_LC = re.compile(r"LC_[A-Z]+")
_AS_PARSED = re.compile(r"C|POSIX|(C|[a-z]{2,3}_[A-Z]{2})\.(UTF-8|utf8)")
"""Values of LANG and ``LC_*`` with which bash takes the same characters for quotes as the parser."""


def is_harmless(name: str) -> bool:
    """Whether the shell may set a variable of its own without changing what programs may do.

    Names in small letters, except proxies, are the variables of a script.
    """
    if _LOWER.fullmatch(name):
        return not name.endswith("_proxy")
    return _is_known(name)


def is_harmless_to_programs(assignment: Word) -> bool:
    """Whether an assignment before a program changes nothing about what it may do. One in small letters may:
    make takes each for its own (``cc``), and npm those that begin with ``npm_config_``."""
    return _is_known(assigned(assignment)) and not changes_encoding(assignment)


def _is_known(name: str) -> bool:
    return name in _HARMLESS or _LC.fullmatch(name) is not None


def changes_encoding(word: Word) -> bool:
    """Whether an assignment, or a name of which the value is not known, may change how bash reads bytes: in
    some encodings a byte of a character is a backslash, so that a quote ends elsewhere."""
    name, value = _text(word), None
    if (found := _ASSIGNMENT.match(name)) is not None:
        name, value = found[1], name[found.end() :]
    if name != "LANG" and not _LC.fullmatch(name):
        return False
    return isinstance(word, Expansion) or value is None or not _AS_PARSED.fullmatch(value)


def assigned(word: Word) -> str:
    """The name that a word assigns to, or nothing."""
    found = _ASSIGNMENT.match(word.written if isinstance(word, Expansion) else word)
    return found[1] if found else ""


def program(words: Words) -> str:
    """The name of the program that is run, without its folder; nothing if the shell computes it."""
    return words[0].rpartition("/")[2] if words and isinstance(words[0], str) else ""


def unwrapped(words: Words) -> Unwrapped | None:
    """What a wrapper runs, or None if the command is no wrapper."""
    name = program(words)
    if name not in WRAPPERS:
        return None
    if any(word in _ONLY_TELLS.get(name, ()) for word in words[1:2]):
        return Unwrapped()
    try:
        return _inner(name, WRAPPERS[name], words)
    except _Unclear as unclear:
        return Unwrapped(unclear=f"what `{name}` runs is not clear from `{unclear}`")


class _Unclear(Exception):
    """Where the command of a wrapper begins depends on this word."""


def _inner(name: str, wrapper: Wrapper, words: Words) -> Unwrapped:
    rest, marks = _after_options(wrapper, words[1:])
    for word in rest[: wrapper.operands]:
        _require_one(word, isinstance(word, str))
    rest = rest[wrapper.operands :]
    transparent = wrapper.transparent and _is_of_the_system(words[0])
    while wrapper.assignments and rest and (isinstance(rest[0], Expansion) or "=" in rest[0]):
        _require_one(rest[0], assigned(rest[0]) != "")
        transparent = transparent and is_harmless_to_programs(rest[0])
        rest = rest[1:]
    return Unwrapped(_with_arguments(rest, marks) if name == "xargs" else rest, transparent)


def _is_of_the_system(word: Word) -> bool:
    """A file of the workspace that is called ``env`` may do anything."""
    folder = word.rpartition("/")[0] if isinstance(word, str) else "?"
    return folder in ("", "/bin", "/usr/bin")


def _after_options(wrapper: Wrapper, words: Words) -> tuple[Words, list[str]]:
    """What follows the options, and the values of ``-I``."""
    flags, valued = set(wrapper.flags.split()), set(wrapper.valued.split())
    marks: list[str] = []
    while words and isinstance(words[0], str) and words[0].startswith("-"):
        word, words = words[0], words[1:]
        if word == "--":
            break
        option, value = _option(word, flags, valued)
        if option in valued and value is None:
            if not words:
                raise _Unclear(word)
            _require_one(words[0], option != "-I" or isinstance(words[0], str))
            value, words = _text(words[0]), words[1:]
        if option == "-I":
            marks.append(value or "")
    return words, marks


def _option(word: str, flags: set[str], valued: set[str]) -> tuple[str, str | None]:
    """The last option of a word, and the value that is part of the word."""
    if word in flags | valued:
        return word, None
    name, equals, value = word.partition("=")
    if word.startswith("--") and equals and name in valued:
        return name, value
    for at, letter in enumerate(word[1:], 1):
        if "-" + letter in valued:
            return "-" + letter, word[at + 1 :] or None
        if word.startswith("--") or "-" + letter not in flags:
            raise _Unclear(word)
    return word, None


def _require_one(word: Word, is_clear: bool) -> None:
    """Goes on only if a word is clear, and stays one word."""
    if not is_clear or (isinstance(word, Expansion) and word.splits):
        raise _Unclear(_text(word))


def _with_arguments(rest: Words, marks: list[str]) -> Words:
    """A command of ``xargs``, with the arguments that it reads: at the end, or where ``-I`` puts them."""
    if not marks:
        return (*rest, FURTHER) if rest else ()
    return tuple(Expansion(_text(word), splits=False) if marks[-1] in _text(word) else word for word in rest)


def _text(word: Word) -> str:
    return word.written if isinstance(word, Expansion) else word
