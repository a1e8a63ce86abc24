"""The terminal of a person: line editing with a history, single keys for approvals, colours where
supported."""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput
from rich.console import Console
from rich.text import Text

from mesh.chat.card import card, keys
from mesh.chat.card_rows import ScreenSize
from mesh.chat.editor import EditorFailed, edited, editor_of
from mesh.chat.layout import Layout
from mesh.chat.live_tree import LiveTree
from mesh.chat.terminal import CancelRequested, InputEnded
from mesh.chat.transcript import Notice, Piece, TranscriptPart
from mesh.chat.typed_lines import TypedLines, line_keys
from mesh.chat.whole_approval import MorePreview, all_rows
from mesh.client.rest import MeshClient
from mesh.core.approvals import Decision, kind_of
from mesh.core.events import ApprovalRequired, Choice
from mesh.core.verdict import Remember
from mesh.display.agent_trees import as_trees
from mesh.display.approvals import edited_part, is_prose, with_edited
from mesh.display.policies import SCOPES
from mesh.display.text import as_json, clean, one_line
from mesh.display.visible import exact_json

_STYLES = {
    "plain": "",
    "dim": "dim",
    "good": "green",
    "bad": "red",
    "ask": "bold yellow",
    "node": "bold cyan",
    "added": "green",
    "removed": "red",
    "hidden": "reverse yellow",
}
_PROMPT = "› "
_STOP, _LEAVE = "\x03", "\x04"
_PAGES = {" ": "more", "q": "back"}
_KEY_NAMES = {" ": "space"}
_LEAST_PAGE = 5
_EDITS = "{what} (Enter: approve, Ctrl-C: back): "
_ADDS = "the rule that is added {scope} (Enter: {enter}, Ctrl-C: back): "
_ENDS = "until when, such as 2030-01-31 18:00 (Enter alone: for good, Ctrl-C: back): "
_MOST_HELD = 20_000
"""How many pieces of text are held back while a line or the tree is on the screen."""
_SKIPPED = "the person skipped the question"


class InteractiveTerminal:
    """A `Terminal` on the terminal of this process. ``has_token`` says whether the chat has a bearer
    token."""

    def __init__(
        self, console: Console, history: History, env: Mapping[str, str], has_token: bool = False
    ) -> None:
        self._has_token = has_token
        self._edits: dict[str, str] = {}  # what was edited last, by the uuid of the approval
        self._rules: dict[str, str] = {}  # as they were edited last, by the uuid of the approval
        self._console = console
        self._layout = Layout()
        self._editor = editor_of(env)
        self._output = PlainTextOutput(sys.stdout) if console.is_dumb_terminal else None
        self._lines = self._session(history=history, key_bindings=_line_keys())
        meanwhile = self._session(
            history=history, key_bindings=line_keys(_more_lines()), erase_when_done=True
        )
        self._typed = TypedLines(meanwhile, self._hold_back, self._print_held)
        self._held: deque[Piece] | None = None  # what is to be printed once the screen is free

    def show(self, parts: Iterable[TranscriptPart]) -> None:
        for part in parts:
            self._print(self._layout.put(part))

    def recall(self, parts: Iterable[TranscriptPart]) -> None:
        self.show(parts)

    def end_turn(self) -> None:
        self._print(self._layout.end_turn())

    def _hold_back(self) -> None:
        self._print(self._layout.end_line())
        self._held = deque(maxlen=_MOST_HELD)

    def _print_held(self) -> None:
        held, self._held = self._held or (), None
        if len(held) == _MOST_HELD:
            self._print([("dim", "… much was said meanwhile, and this is the end of it\n")])
        self._print(held)

    def _print(self, pieces: Iterable[Piece]) -> None:
        if self._held is not None:
            self._held += pieces
            return
        for tone, text in pieces:
            self._console.print(Text(text, _STYLES[tone]), end="", soft_wrap=True)

    def _session(self, **more: Any) -> PromptSession[str]:
        return PromptSession(output=self._output, **more)

    async def message(self, draft: str = "") -> str:
        self._print(self._layout.end_line())
        draft = "\n".join(filter(None, (draft, self._typed.take_draft())))
        while True:
            try:
                line = await self._lines.prompt_async(_PROMPT, default=draft, handle_sigint=False)
            except EOFError:
                raise InputEnded from None
            if line.strip():
                return line.rstrip()
            draft = ""

    async def typed(self, until: asyncio.Event) -> str | None:
        try:
            line = await self._typed.line(until)
        except KeyboardInterrupt:
            raise CancelRequested from None
        except EOFError:
            raise InputEnded from None
        return None if line is None else line.rstrip()

    async def watch(self, client: MeshClient, conversation_id: str) -> None:
        if self._output is not None:  # a dumb terminal, which cannot be drawn on
            for tree in as_trees(await client.agents_at_work(conversation_id, ended=True)):
                self._console.print(tree)
            return
        self._hold_back()
        try:
            await LiveTree(client, conversation_id, keeps_ended=True).run()
        finally:
            self._print_held()

    async def decide(self, asked: ApprovalRequired, place: str, more: MorePreview) -> Decision | None:
        self._forget_typed()
        self.show(card(asked, place, self._has_token, self._size))
        if kind_of(asked).is_question:
            return await self._answered(asked.uuid)
        while True:
            decision = await self._after(await self._key(asked), asked, more)
            if decision is not None:
                return decision

    @property
    def _size(self) -> ScreenSize:
        return ScreenSize(self._console.width, self._console.height)

    async def _after(self, key: str, asked: ApprovalRequired, more: MorePreview) -> Decision | None:
        """Returns the decision of a key, or None if it decides nothing yet."""
        match key:
            case "v":
                await self._view(asked, more)
                return None
            case "c" | "l":
                return await self._remembering(asked, "conversation" if key == "c" else "always")
            case "e":
                edited = await self._edited(asked)
                return None if edited is None else Decision(asked.uuid, "approve", edited)
            case "w":
                words = ((await self._line("answer (Enter alone: back): ")) or "").strip()
                return Decision(asked.uuid, "answer", answer=words) if words else None
            case "r":
                ends = ", and the turn ends" if kind_of(asked).reject_ends_turn else ""
                reason = await self._line(f"reason (Enter: none{ends}): ")
                return None if reason is None else Decision(asked.uuid, "reject", reason=reason.strip())
            case _:
                return Decision(asked.uuid, _CHOICES[key])

    async def _answered(self, uuid: str) -> Decision:
        """Returns the answer to a question, or a rejection if the person skips it."""
        session = self._session(key_bindings=_more_lines())
        try:
            text = await session.prompt_async("answer (Enter alone skips) › ", handle_sigint=False)
        except KeyboardInterrupt:
            raise CancelRequested from None
        except EOFError:
            raise InputEnded from None
        answer = text.strip()
        if not answer:
            return Decision(uuid, "reject", reason=_SKIPPED)
        return Decision(uuid, "answer", answer=answer)

    async def _key(self, asked: ApprovalRequired) -> str:
        """Waits for one of the keys that are offered. Other keys do nothing."""
        meaning = keys(asked, self._has_token)
        key = await self._one_of(meaning)
        self.show([Notice(f"  {meaning[key]}")])
        return key

    async def _one_of(self, meaning: Mapping[str, str]) -> str:
        named = "  ".join(f"[{_KEY_NAMES.get(key, key)}] {word}" for key, word in meaning.items())
        session = self._session(key_bindings=_single_keys(meaning), erase_when_done=True)
        key = await session.prompt_async(f"{named} › ", handle_sigint=False)
        if key == _STOP:
            raise CancelRequested
        if key == _LEAVE:
            raise InputEnded
        return key

    async def _view(self, asked: ApprovalRequired, more: MorePreview) -> None:
        """Shows all of it, as much at a time as fits on the screen."""
        on_screen = 0
        async with aclosing(all_rows(asked, self._size, more)) as rows:
            async for row in rows:
                if on_screen >= max(_LEAST_PAGE, self._size.lines - 1):
                    if await self._one_of(_PAGES) == "q":
                        return
                    on_screen = 0
                self.show([row])
                on_screen += 1

    async def _remembering(self, asked: ApprovalRequired, scope: Remember) -> Decision | None:
        """Returns an approval with the rule that is remembered, as the person edited it; None if the person
        gave up. What the mesh refused can be edited on."""
        suggested = exact_json(asked.suggested_rule)
        text = self._rules.get(asked.uuid, suggested)
        while True:
            enter = "until when?" if scope == "always" else "approve"
            changed = await self._line(_ADDS.format(scope=SCOPES[scope], enter=enter), text)
            if changed is None or not changed.strip():
                return None
            self._rules[asked.uuid] = text = changed
            rule, problem = _rule_in(changed)
            if rule is not None:
                end = await self._line(_ENDS) if scope == "always" else ""
                edited = rule if rule != asked.suggested_rule else None
                decision = Decision(asked.uuid, "approve", remember=scope, rule=edited)
                return None if end is None else msgspec.structs.replace(decision, until=_end_in(end.strip()))
            self._wrong(problem)

    def _forget_typed(self) -> None:
        """Discards what was typed before the approval was shown, so that it does not decide it."""
        import termios

        clear_typeahead(self._lines.input)
        termios.tcflush(self._lines.input.fileno(), termios.TCIFLUSH)

    async def _line(self, prompt: str, default: str = "") -> str | None:
        """Reads a line that is not kept in the history. Returns None on Ctrl-C and Ctrl-D."""
        try:
            return await self._session().prompt_async(prompt, default=default, handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            return None

    async def _edited(self, asked: ApprovalRequired) -> dict[str, Any] | None:
        """Returns the arguments as the person edited them, or None if the person gave up. What the mesh
        refused can be edited on."""
        text = self._edits.get(asked.uuid) or self._editable(asked)
        while True:
            changed = await self._changed(text, "answer" if kind_of(asked).edits_output else "arguments")
            if changed is None or not changed.strip():
                return None
            self._edits[asked.uuid] = text = changed
            found, problem = _read(asked, changed)
            if found is not None:
                return found
            self._wrong(problem)
            if self._editor and await self._line("Enter: edit again, Ctrl-C: do not ") is None:
                return None

    def _editable(self, asked: ApprovalRequired) -> str:
        if is_prose(asked):
            return clean(edited_part(asked))
        return as_json(edited_part(asked), indent=2 if self._editor else None)

    async def _changed(self, text: str, what: str) -> str | None:
        if not self._editor:
            return await self._line(_EDITS.format(what=what), text)
        try:
            return await asyncio.to_thread(edited, self._editor, text)
        except EditorFailed as problem:
            self._wrong(str(problem))
            return None

    def _wrong(self, problem: str) -> None:
        self.show([Notice(f"✗ {one_line(problem, 200)}", "bad")])


def _read(asked: ApprovalRequired, text: str) -> tuple[dict[str, Any] | None, str]:
    """Returns the edited arguments in a text, or what is wrong with it."""
    if is_prose(asked):
        return with_edited(asked, text.removesuffix("\n")), ""
    try:
        found = with_edited(asked, json.loads(text))
    except (ValueError, RecursionError) as problem:
        return None, f"this is not JSON: {problem}"
    return (found, "") if isinstance(found, dict) else (None, "arguments are a JSON object, in braces")


def _rule_in(text: str) -> tuple[dict[str, Any] | None, str]:
    """Returns the rule in a text, or what is wrong with it. The mesh knows whether it can be remembered."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        return None, f"this is not JSON: {problem}"
    return (found, "") if isinstance(found, dict) else (None, "a rule is a JSON object, in braces")


def _end_in(text: str) -> str:
    """A time as the mesh takes it: without a zone, it is of the one that the terminal is in. What is no time
    is left to the mesh, which says so."""
    try:
        return datetime.fromisoformat(text).astimezone().isoformat() if text else ""
    except (ValueError, OverflowError):
        return text


_CHOICES: dict[str, Choice] = {"a": "approve", "t": "retry", "s": "skip"}


def _line_keys() -> KeyBindings:
    bound = _more_lines()

    @bound.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return bound


def _more_lines() -> KeyBindings:
    bound = KeyBindings()

    @bound.add("escape", "enter")
    def next_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bound


def _single_keys(meaning: Iterable[str]) -> KeyBindings:
    bound = KeyBindings()

    @bound.add("<any>")
    @bound.add("enter")
    def nothing(_: KeyPressEvent) -> None:
        """Ignores keys that are not offered."""

    def leave_with(result: str) -> Callable[[KeyPressEvent], None]:
        return lambda event: event.app.exit(result=result)

    for key in meaning:
        bound.add(key)(leave_with(key))
        bound.add(key.upper())(leave_with(key))
    bound.add("c-c")(leave_with(_STOP))
    bound.add("c-d")(leave_with(_LEAVE))
    return bound
