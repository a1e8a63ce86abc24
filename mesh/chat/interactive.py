"""A person at a terminal: line editing with history, single keys for approvals, colours where wanted."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput
from rich.console import Console
from rich.text import Text

from mesh.chat.editor import EditorFailed, edited, editor_of
from mesh.chat.layout import Layout, Piece
from mesh.chat.terminal import KEYS, Left, Stopped, Verdict, card, in_full, keys_line
from mesh.chat.transcript import Note, Part
from mesh.chat.words import as_json, one_line
from mesh.events import ApprovalRequired

_STYLES = {
    "plain": "",
    "dim": "dim",
    "good": "green",
    "bad": "red",
    "ask": "bold yellow",
    "node": "bold cyan",
}
_PROMPT = "› "
_STOP, _LEAVE = "\x03", "\x04"


class InteractiveTerminal:
    """`Terminal` over the one this process has."""

    def __init__(self, console: Console, history: History, env: Mapping[str, str]) -> None:
        self._console = console
        self._layout = Layout()
        self._editor = editor_of(env)
        self._output = PlainTextOutput(sys.stdout) if console.is_dumb_terminal else None
        self._lines = self._session(history=history, key_bindings=_line_keys())

    def show(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._print(self._layout.put(part))

    def recall(self, parts: Iterable[Part]) -> None:
        self.show(parts)

    def end_turn(self) -> None:
        self._print(self._layout.end_turn())

    def _print(self, pieces: Iterable[Piece]) -> None:
        for tone, text in pieces:
            self._console.print(Text(text, _STYLES[tone]), end="", soft_wrap=True)

    def _session(self, **more: Any) -> PromptSession[str]:
        return PromptSession(output=self._output, **more)

    async def message(self) -> str:
        self._print(self._layout.end_line())
        while True:
            try:
                line = await self._lines.prompt_async(_PROMPT, handle_sigint=False)
            except EOFError:
                raise Left from None
            if line.strip():
                return line.rstrip()

    async def decide(self, asked: ApprovalRequired, place: str) -> Verdict | None:
        self._forget_typed()
        self.show(card(asked, place))
        while True:
            key = await self._key(asked)
            if key == "v":
                self.show([in_full(asked)])
            elif key == "e":
                edited = await self._edited(asked.tool_args)
                if edited is not None:
                    return Verdict("approve", edited_args=edited)
            elif key == "r":
                reason = await self._line("reason (Enter: none, and the turn ends): ")
                if reason is not None:
                    return Verdict("reject", reason=reason.strip())
            else:
                return _VERDICTS[key]

    async def _key(self, asked: ApprovalRequired) -> str:
        """One of the keys that mean something; the others do nothing."""
        session = self._session(key_bindings=_single_keys(KEYS[asked.kind]), erase_when_done=True)
        key = await session.prompt_async(f"{keys_line(asked)} › ", handle_sigint=False)
        if key == _STOP:
            raise Stopped
        if key == _LEAVE:
            raise Left
        self.show([Note(f"  {KEYS[asked.kind][key]}")])
        return key

    def _forget_typed(self) -> None:
        """What was typed before the question was there does not answer it."""
        import termios

        clear_typeahead(self._lines.input)
        termios.tcflush(self._lines.input.fileno(), termios.TCIFLUSH)

    async def _line(self, prompt: str, default: str = "") -> str | None:
        """A line that is not kept in the history; None: Ctrl-C or Ctrl-D, back to the question."""
        try:
            return await self._session().prompt_async(prompt, default=default, handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            return None

    async def _edited(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments as a person changed them; None: not after all."""
        text = as_json(arguments, indent=2 if self._editor else None)
        while True:
            changed = await self._changed(text)
            if changed is None or not changed.strip():
                return None
            text = changed
            try:
                found = json.loads(changed)
            except (ValueError, RecursionError) as problem:
                self._wrong(f"this is not JSON: {problem}")
            else:
                if isinstance(found, dict):
                    return found
                self._wrong("arguments are a JSON object, in braces")
            if self._editor and await self._line("Enter: edit again, Ctrl-C: do not ") is None:
                return None

    async def _changed(self, text: str) -> str | None:
        if not self._editor:
            return await self._line("arguments: ", text)
        try:
            return await asyncio.to_thread(edited, self._editor, text)
        except EditorFailed as problem:
            self._wrong(str(problem))
            return None

    def _wrong(self, problem: str) -> None:
        self.show([Note(f"✗ {one_line(problem, 200)}", "bad")])


_VERDICTS = {"a": Verdict("approve"), "t": Verdict("retry"), "s": Verdict("skip")}


def _line_keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    @keys.add("escape", "enter")
    def next_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _single_keys(meaning: Iterable[str]) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("<any>")
    @keys.add("enter")
    def nothing(_: KeyPressEvent) -> None:
        """Not one of the keys that were named."""

    def leave_with(result: str) -> Callable[[KeyPressEvent], None]:
        return lambda event: event.app.exit(result=result)

    for key in meaning:
        keys.add(key)(leave_with(key))
        keys.add(key.upper())(leave_with(key))
    keys.add("c-c")(leave_with(_STOP))
    keys.add("c-d")(leave_with(_LEAVE))
    return keys
