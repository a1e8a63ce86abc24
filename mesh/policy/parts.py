"""Says what a shell command may run, from the syntax tree of shfmt.

The tree is visited whole, so that a command is found wherever it stands. Where bash may see something else
than shfmt, or computes what it runs, the command asks: an unknown construct, arithmetic with variables (the
value of one is itself an expression, which may run commands), a comment that ends with a backslash.
"""

import re
from collections.abc import Callable, Sequence

from mesh.policy.commands import Expansion, ParsedCommand, Redirection, SimpleCommand, Word, Words, names
from mesh.policy.doubts import doubt, is_evaluated, unsafe_encoding, unsafe_name
from mesh.policy.syntax import Node, assignment_of, children, word_of, written
from mesh.policy.wrappers import assigned, is_harmless, is_harmless_to_programs, program, unwrapped

_KNOWN = names(
    "ArithmCmd ArithmExp BinaryArithm BinaryCmd BinaryTest Block CStyleLoop CallExpr CaseClause CmdSubst "
    "CoprocClause DblQuoted DeclClause File ForClause FuncDecl IfClause LetClause Lit ParamExp ParenArithm "
    "ParenTest ProcSubst SglQuoted Subshell TestClause TimeClause UnaryArithm UnaryTest WhileClause Word "
    "WordIter"
)
_OF_OTHER_SHELLS = names(
    "Braces Coprocess Disown Flags GlobSubst IsSet Modifiers Names NestedParam RcExpand ReplyVar Split "
    "TempFile Unsigned Width"
)
_COMMENTS = names("Comments Last CondLast ThenLast DoLast")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NUMBER = re.compile(r"[0-9]+")
_DESCRIPTOR = re.compile(r"[0-9]*-?")
_PLAIN = re.compile(r"[\w./+-]+")
_OPENS = {"<": "r", "<>": "rw", ">": "w", ">>": "w", ">|": "w", "&>": "w", "&>>": "w", "<&": "r", ">&": "w"}
_STREAMS = re.compile(r"/dev/(null|stdin|stdout|stderr|fd/[0-9]+)")
_NETWORK = re.compile(r"/dev/(tcp|udp)(/|$)")
_COMPARES = names("-eq -ne -lt -le -gt -ge")
_ARITHMETIC = names("ArithmExp ArithmCmd LetClause CStyleLoop")
_TRANSFORMS = frozenset("QEUuLAaKk")
_CONTINUED_COMMENT = re.compile(r"\\(\n|$)")
_QUOTED = re.compile(r"['\"\\]")
_QUOTED_COMMAND = re.compile(r"'[^']*[$`\\]", re.DOTALL)
_MOVES = frozenset({"cd", "pushd", "popd"})


def unreadable(text: str) -> str:
    """Why a text must ask before it is parsed: bash and shfmt take these characters for different things."""
    if found := _CONTROL.search(text):
        return f"it has the control character {found[0]!r}"
    if text.endswith("\\"):
        return "it ends with a backslash"
    return ""


def parsed(tree: Node, source: bytes) -> ParsedCommand:
    """What a text may run, which files it redirects to, and why it must ask."""
    visitor = _Visitor(source)
    visitor.visit(tree)
    return ParsedCommand(tuple(visitor.parts), visitor.redirections(), visitor.why_ask)


def of_program(exe: str, args: Sequence[str]) -> ParsedCommand:
    """A program that is run without a shell."""
    part = command_of((exe, *args))
    why_ask = "the name of its program begins with a dash" if exe.startswith("-") else _doubt(part)
    return ParsedCommand((part,), (), why_ask)


def command_of(words: Words, assignments: int = 0) -> SimpleCommand:
    """A simple command: its words, what its wrappers run, and what an allow is compared with."""
    through: list[Words] = []
    inner, allowed_as, transparent = words, words, True
    while inner:
        if len(through) < assignments:
            inner, may_strip = inner[1:], is_harmless_to_programs(inner[0])
        else:
            wrapper = unwrapped(inner)
            inner, may_strip = (wrapper.words, wrapper.transparent) if wrapper else ((), False)
        transparent = transparent and may_strip
        if inner:
            through.append(inner)
            allowed_as = inner if transparent else allowed_as
    return SimpleCommand(words, allowed_as, (*through, *_without_folder(through[-1] if through else words)))


def _without_folder(words: Words) -> tuple[Words, ...]:
    name = program(words)
    return ((name, *words[1:]),) if name and name != words[0] else ()


def _doubt(part: SimpleCommand) -> str:
    """The first reason why a command, or what it wraps, must ask."""
    for words in (part.words, *part.looked_through):
        wrapper = unwrapped(words)
        if why := (wrapper.unclear if wrapper else "") or doubt(words):
            return why
    return ""


class _Visitor:
    """Visits each node of a tree once, in the order of the text."""

    def __init__(self, source: bytes) -> None:
        self.parts: list[SimpleCommand] = []
        self.why_ask = ""
        self._source = source
        self._opened: list[tuple[Word, str]] = []

    def visit(self, tree: Node) -> None:
        waiting = [("", tree)]
        while waiting:
            key, node = waiting.pop()
            self._look_at(key, node)
            waiting += reversed(list(children(node)))

    def redirections(self) -> tuple[Redirection, ...]:
        """The files that are opened. After a ``cd``, it is not clear which file a relative path is."""
        moves = any(
            program(words) in _MOVES for part in self.parts for words in (part.words, *part.looked_through)
        )
        return tuple(
            Redirection(_after_cd(path) if moves else path, writes=mode == "w")
            for path, modes in self._opened
            for mode in modes
        )

    def _ask(self, why: str) -> None:
        self.why_ask = self.why_ask or why

    def _look_at(self, key: str, node: Node) -> None:
        kind = node.get("Type", "")
        if (kind and kind not in _KNOWN) or _OF_OTHER_SHELLS & node.keys():
            self._ask(f"it has a construct that is not judged: `{self._written(node)}`")
        if key in _COMMENTS and _CONTINUED_COMMENT.search(node.get("Text", "")):
            self._ask("a comment ends with a backslash")
        if key in ("Index", "Slice") or kind in _ARITHMETIC:
            self._arithmetic(node)
        if look := _LOOKS.get("Redirect" if key == "Redirs" else kind):
            look(self, node)

    def _written(self, node: Node) -> str:
        return written(node, self._source)

    def _word(self, node: Node) -> Word:
        return word_of(node, self._source)

    def _call(self, node: Node) -> None:
        assignments = [assignment_of(each, self._source) for each in node.get("Assigns", [])]
        arguments = [self._word(each) for each in node.get("Args", [])]
        for name in filter(is_evaluated, map(assigned, assignments)):
            self._ask(unsafe_name(name))
        if arguments:
            self._part((*assignments, *arguments), len(assignments))
            return
        for word in assignments:  # of the shell itself: the variables of a script change nothing
            self._ask(unsafe_encoding(word))
            if not is_harmless(assigned(word)):
                self._part((word,), 1)

    def _declaration(self, node: Node) -> None:
        arguments = [assignment_of(each, self._source) for each in node.get("Args", [])]
        self._part((node["Variant"]["Value"], *arguments))

    def _part(self, words: Words, assignments: int = 0) -> None:
        part = command_of(words, assignments)
        self.parts.append(part)
        self._ask(_doubt(part))

    def _redirection(self, node: Node) -> None:
        target, mode = node["Word"], _OPENS.get(node["Op"], "")
        if node.get("N", {}).get("Value", "").startswith("{"):
            self._ask(unsafe_name(node["N"]["Value"].strip("{}")))
        elif self._source[: node["Pos"]["Offset"]].endswith(b"}"):
            self._ask("the descriptor of a redirection is computed")  # {a[$v]}>f
        if "Hdoc" in node or node["Op"].startswith("<<"):
            self._here_document(node)
        elif not mode:
            self._ask(f"it has a redirection that is not judged: `{self._written(node)}`")
        elif node["Op"] in (">&", "<&"):
            self._duplicate(self._word(target), mode)
        elif not _is_process(target):
            self._opens(self._word(target), mode)

    def _duplicate(self, target: Word, mode: str) -> None:
        """Bash expands the target twice: a second time as the name of a file, if it is no descriptor."""
        if not isinstance(target, str) or not _PLAIN.fullmatch(target):
            self._ask("what it redirects to is computed")
        elif not _DESCRIPTOR.fullmatch(target):
            self._opens(target, mode)

    def _opens(self, path: Word, mode: str) -> None:
        if isinstance(path, str) and _NETWORK.match(path):
            self._ask(f"it opens a connection: `{path}`")
        if isinstance(path, Expansion) or not _STREAMS.fullmatch(path):
            self._opened.append((path, mode))

    def _here_document(self, node: Node) -> None:
        """In a body that is expanded, a backslash at the end of a line may hide where it ends."""
        delimiter = self._written(node["Word"])
        if "Hdoc" in node and not _QUOTED.search(delimiter) and "\\\n" in self._written(node["Hdoc"]):
            self._ask("a line of a here-document is continued")
        if isinstance(self._word(node["Word"]), Expansion) and node["Op"] != "<<<":
            self._ask(f"a here-document ends at a word that is computed: `{delimiter}`")

    def _arithmetic(self, node: Node) -> None:
        """The value of a variable is itself an expression, and an index in it may run commands."""
        if not _is_plain_arithmetic(node):
            self._ask(f"it computes with variables: `{self._written(node)}`")

    def _parameter(self, node: Node) -> None:
        expansion = node.get("Exp", {})
        operator, word = expansion.get("Op", ""), self._word(expansion.get("Word", {}))
        if node.get("Excl") or (operator == "@" and word not in _TRANSFORMS):
            self._ask(f"what it expands is computed: `{self._written(node)}`")
        if operator in ("=", ":="):
            self._ask(unsafe_name(node["Param"]["Value"]))
        if _QUOTED_COMMAND.search(self._written(node)):
            self._ask("whether a quote within `${…}` is one is not clear")

    def _substitution(self, node: Node) -> None:
        """Within backquotes, backslashes are removed before the text is parsed."""
        if node.get("Backquotes") and "\\" in self._written(node):
            self._ask("it has a backslash within backquotes")

    def _loop(self, node: Node) -> None:
        self._ask(unsafe_name(node["Name"]["Value"]))

    def _coprocess(self, node: Node) -> None:
        """What shfmt takes for the name of one may be its command."""
        if "Name" in node:
            self._ask("a coprocess has a name")

    def _time(self, node: Node) -> None:
        """Bash reads options of ``time`` that shfmt takes for a command."""
        arguments = node.get("Stmt", {}).get("Cmd", {}).get("Args", [])
        if arguments and self._written(arguments[0]).startswith("-"):
            self._ask("`time` has options that are not judged")

    def _condition(self, node: Node) -> None:
        operands = [node[key] for key in ("X", "Y") if key in node]
        if node["Op"] in _COMPARES and not all(map(_is_plain_arithmetic, operands)):
            self._ask(f"it computes with variables: `{self._written(node)}`")
        name = self._word(operands[0]) if node["Op"] in ("-v", "-R") else ""
        if isinstance(name, Expansion) or "[" in name:
            self._ask(f"it computes with variables: `{self._written(node)}`")


_LOOKS: dict[str, Callable[[_Visitor, Node], None]] = {
    "BinaryTest": _Visitor._condition,
    "CallExpr": _Visitor._call,
    "CmdSubst": _Visitor._substitution,
    "CoprocClause": _Visitor._coprocess,
    "DeclClause": _Visitor._declaration,
    "ParamExp": _Visitor._parameter,
    "Redirect": _Visitor._redirection,
    "TimeClause": _Visitor._time,
    "UnaryTest": _Visitor._condition,
    "WordIter": _Visitor._loop,
}


def _is_process(word: Node) -> bool:
    return [part["Type"] for part in word.get("Parts", [])] == ["ProcSubst"]


def _after_cd(path: Word) -> Word:
    if isinstance(path, Expansion) or path.startswith("/"):
        return path
    return Expansion(path, splits=False)


def _is_plain_arithmetic(node: Node) -> bool:
    """Whether an expression has only numbers: those that are written, and counts of the shell."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if "Parts" in node:
            if not all(map(_is_number, node["Parts"])):
                return False
        else:
            waiting += [child for _, child in children(node)]
    return True


def _is_number(part: Node) -> bool:
    if part["Type"] == "Lit":
        return _NUMBER.fullmatch(part["Value"]) is not None or part["Value"] in ("@", "*")
    if part["Type"] == "DblQuoted":
        return all(map(_is_number, part.get("Parts", [])))
    name = part.get("Param", {}).get("Value", "")
    return part["Type"] == "ParamExp" and bool(part.get("Length") or (part.get("Short") and name in "?#$!"))
