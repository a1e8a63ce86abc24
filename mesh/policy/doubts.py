"""Commands whose words do not show what they run, and variables by which a command runs others."""

import re
from collections.abc import Callable
from itertools import pairwise

from mesh.policy.commands import Expansion, Word, Words, names, shown
from mesh.policy.wrappers import assigned, changes_encoding, is_harmless, program

_OPAQUE = names(
    ". alias at batch bind chroot compgen complete compopt enable entr eval expect fc firejail flock let "
    "nsenter parallel pkexec prlimit runuser script setpriv sg shopt source strace su systemd-run "
    "trap unshare watch"
)
"""Commands that run a text, another command, or what a later command is to be."""

_EVALUATED = names(
    "BASH_COMPAT BASH_ENV ENV HISTCMD LINENO OPTIND PROMPT_COMMAND PS0 PS1 PS2 PS3 PS4 RANDOM SECONDS SRANDOM"
)
_SHELLS = names("ash bash csh dash fish ksh ksh93 mksh rbash sh tcsh yash zsh")
_FIND_RUNS = {"-exec", "-execdir", "-ok", "-okdir"}
_SETS = names("declare export getopts local mapfile nameref read readarray readonly typeset unset")
_SET_OPTIONS = re.compile(r"[-+][BbCEefhHmnPTuvx]*o?")
_SET_NAMES = names("errexit noclobber noexec noglob nounset pipefail verbose xtrace errtrace")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = {"$?", "$#", "$$", "$!", '"$?"', '"$#"', '"$$"', '"$!"'}


def doubt(words: Words) -> str:
    """Why a command must ask, whatever the rules allow; nothing if its words show what it runs."""
    if not words:
        return ""
    if isinstance(words[0], Expansion):
        return "" if assigned(words[0]) else f"the name of the command is computed: `{words[0].written}`"
    name = program(words)
    check = _CHECKS.get(name)
    if name in _OPAQUE or (check and not check(words)):
        return f"what it runs is not clear: `{_short(shown(words))}`"
    return ""


def is_evaluated(name: str) -> bool:
    """Whether bash runs what is in the value of a variable, or computes with it."""
    return name in _EVALUATED


def unsafe_name(name: str) -> str:
    """Why the shell must not set a variable without asking; nothing if it may."""
    return unsafe_encoding(name) if is_harmless(name) else f"it sets the variable `{_short(name)}`"


def unsafe_encoding(word: Word) -> str:
    """Why the shell must not assign this to a variable without asking; nothing if it may."""
    if not changes_encoding(word):
        return ""
    return f"after it, bash may take other characters for quotes: `{_short(shown((word,)))}`"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _is_clear_shell(words: Words) -> bool:
    """A shell that runs a file by its name. Each other form reads a text, of an option or of its input."""
    rest = [word for word in words[1:] if not (isinstance(word, str) and re.fullmatch("-[eux]+", word))]
    script = rest[0] if rest else "-"
    return isinstance(script, str) and script != "" and not script.startswith(("-", "+", "/dev/", "/proc/"))


def _is_clear_find(words: Words) -> bool:
    """Neither runs commands, nor can: an argument that the shell computes may be ``-exec``."""
    computed = [word for word in words if isinstance(word, Expansion)]
    if _FIND_RUNS & {word for word in words if isinstance(word, str)}:
        return False
    return not computed or not (
        len(computed) > 1 or computed[0].splits or any(word in (";", "+") for word in words)
    )


def _only_sets_names(words: Words) -> bool:
    """Only sets variables of a script. A name with an index is an expression, which may run commands."""
    if any(changes_encoding(word) for word in words[1:]):
        return False
    return all(_is_name_or_option(word) for word in words[1:])


def _is_name_or_option(word: Word) -> bool:
    name = assigned(word)
    if name:
        return is_harmless(name) or not (isinstance(word, Expansion) or is_evaluated(name))
    if isinstance(word, Expansion) or "[" in word:
        return False
    if word.startswith(("-", "+")):
        return not set(word) & set("CcinI")
    return is_harmless(word) or _IDENTIFIER.fullmatch(word) is None


def _is_clear_printf(words: Words) -> bool:
    """Writes, and sets no variable that is an expression. An argument that is computed may be ``-v``."""
    option = words[1] if len(words) > 1 else ""
    if isinstance(option, Expansion):
        return not option.splits and all(isinstance(word, str) and "[" not in word for word in words[2:3])
    if not option.startswith("-v"):
        return True
    name = option[2:] or (words[2] if len(words) > 2 else "")
    return _is_name_or_option(name) and not changes_encoding(name)


def _is_clear_test(words: Words) -> bool:
    """A ``-v`` takes an expression, which may run commands; an operand that is computed may be one."""
    for word, following in pairwise(words[1:]):
        if word not in ("-v", "-R") and not _may_be_anything(word):
            continue
        if isinstance(following, Expansion) or "[" in following:
            return False
    return not any(isinstance(word, Expansion) and word.splits and _may_be_anything(word) for word in words)


def _may_be_anything(word: Word) -> bool:
    return isinstance(word, Expansion) and word.written not in _INTEGERS


def _is_clear_set(words: Words) -> bool:
    for word in words[1:]:
        if word in ("--", "-"):
            return True
        if isinstance(word, Expansion) or not (_SET_OPTIONS.fullmatch(word) or word in _SET_NAMES):
            return False
    return True


def _is_clear_wait(words: Words) -> bool:
    """Waits, and sets no variable by ``-p``."""
    return not any(_may_be_anything(word) or str(word).startswith("-p") for word in words[1:])


def _has_no_option(letters: str) -> Callable[[Words], bool]:
    def check(words: Words) -> bool:
        return not any(
            isinstance(word, Expansion) or (word.startswith("-") and set(letters) & set(word))
            for word in words[1:]
        )

    return check


_CHECKS: dict[str, Callable[[Words], bool]] = {
    "find": _is_clear_find,
    "hash": _has_no_option("p"),
    "jobs": _has_no_option("x"),
    "printf": _is_clear_printf,
    "set": _is_clear_set,
    "test": _is_clear_test,
    "[": _is_clear_test,
    "wait": _is_clear_wait,
    **dict.fromkeys(_SETS, _only_sets_names),
    **dict.fromkeys(_SHELLS, _is_clear_shell),
}
