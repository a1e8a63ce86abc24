"""Generates shell commands: what people and models write, and what may hide what runs.

Programs are only those of `PROGRAMS`, and paths only relative ones, so that any command may be run in a
folder with nothing but recorders on its ``PATH``.
"""

import re
from random import Random

from tests.policy import command_forms as forms


class Generator:
    """Makes one command from a seed. A tame one has no errors on purpose, and less that must ask."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._deep = 0
        self._tame = self._chance(0.6)

    def command(self) -> str:
        text = self._list(3)
        if self._chance(0.5):
            text = f"v={self._one_of(forms.VALUES)}{self._one_of(forms.SEPARATORS)}{text}"
        if self._chance(0.15):
            text = f"a=({self._one_of(forms.VALUES)} {self._word()}); {text}"
        if not self._tame and self._chance(0.6):
            text = self._disturbed(text)
        return text

    def _disturbed(self, text: str) -> str:
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randint(0, len(text))
            if self._chance(0.7):
                text = text[:at] + self._one_of(forms.NOISE) + text[at:]
            else:
                text = text[:at] + text[at + self._random.randint(1, 4) :]
        return re.sub(r"(^|[^\w.~$])/", r"\1", text)  # no absolute paths: the command will be run

    def _one_of(self, choices: tuple[str, ...]) -> str:
        return self._random.choice(choices)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _filled(self, form: str) -> str:
        makers = {
            "body": self._body,
            "c": self._line,
            "file": lambda: self._filled(self._one_of(forms.FILES)),
            "in": self._inside,
            "list": lambda: self._list(2),
            "simple": self._simple,
            "w": self._word,
        }
        return re.sub("«([a-z]+)»", lambda found: makers[found[1]](), form)

    def _list(self, most: int) -> str:
        text = self._pipeline()
        for _ in range(self._random.randint(0, most - 1)):
            text += ("" if text.endswith("\n") else self._one_of(forms.JOINTS)) + self._pipeline()
        return text

    def _body(self) -> str:
        """A list that a reserved word may follow."""
        text = self._list(2)
        return text if text.endswith("\n") else text + self._one_of(("; ", "\n", " ;"))

    def _pipeline(self) -> str:
        text = self._command()
        while self._chance(0.15) and not text.endswith("\n"):
            text += self._one_of(forms.PIPES) + self._command()
        return text

    def _command(self) -> str:
        """A simple command mostly, or something around one. Three levels are enough to nest all in all."""
        if self._deep >= 3 or self._chance(0.45):
            return self._simple()
        kinds = [forms.COMPOUND, forms.COMPOUND, forms.WRAPPED] + [forms.NASTY] * (0 if self._tame else 2)
        self._deep += 1
        kind = self._random.choice([*kinds, None])
        text = self._here_document() if kind is None else self._filled(self._one_of(kind))
        self._deep -= 1
        return text

    def _line(self) -> str:
        """A command before which, and after which, more may stand on the line."""
        text = self._simple() if self._tame else self._command()
        return text.partition(" #")[0].rstrip("\n")

    def _simple(self) -> str:
        words = [self._program(), *(self._word() for _ in range(self._random.randint(0, 3)))]
        if self._chance(0.1):
            words.insert(0, f"{self._one_of(('A', 'v', 'b_1', 'LC_ALL', 'GIT_DIR', 'v+'))}={self._word()}")
        for _ in range(3):
            if self._chance(0.12):
                redirected = self._filled(self._one_of(forms.REDIRECTED))
                words.insert(self._random.randint(0, len(words)), redirected)
        if self._chance(0.08):
            words.insert(self._random.randint(1, len(words)), "\\\n")
        if self._chance(0.06):
            words.append(self._one_of(forms.COMMENTS))
        return " ".join(words)

    def _program(self) -> str:
        name = self._one_of(forms.PROGRAMS)
        if self._chance(0.9):
            return name
        quoted = (
            f"'{name}'",
            f'"{name}"',
            f"\\{name}",
            f"{name[:2]}''{name[2:]}",
            f"$'{name}'",
            f"{{{name},x}}",
        )
        return self._one_of(quoted)

    def _inside(self) -> str:
        """What stands in a substitution."""
        self._deep += 1
        text = self._command() if self._deep < 4 else f"{self._one_of(forms.PROGRAMS)} deep"
        self._deep -= 1
        return text

    def _word(self) -> str:
        chance = self._random.random()
        if chance < 0.35:
            return self._one_of(forms.BARE if self._tame or self._chance(0.95) else forms.ODD)
        if chance < 0.55:
            return self._one_of(forms.QUOTED)
        if chance < 0.75:
            return self._one_of(forms.EXPANDED)
        if chance < 0.9:
            few = self._tame and self._chance(0.7)
            return self._filled(self._one_of(forms.SUBSTITUTIONS[:2] if few else forms.SUBSTITUTIONS))
        return self._word() + self._word()

    def _here_document(self) -> str:
        mark = self._one_of(("E", "'E'", '"E"', "\\E", "E'F'", "E-1"))
        end = re.sub(r"['\"\\]", "", mark)
        tab, dash = ("\t", "-") if self._chance(0.2) else ("", "")
        lines = [self._one_of(forms.IN_HERE_DOCUMENTS) for _ in range(self._random.randint(0, 3))]
        body = "".join(f"{tab}{line}\n" for line in (*lines, end))
        reader = self._one_of((*forms.PROGRAMS, "cat", "while read q; do alpha; done"))
        follows = f"{self._one_of((' | ', ' && ', '; '))}{self._line()}" if self._chance(0.3) else ""
        return f"{reader} <<{dash}{mark}{follows}\n{body}"
