"""What begins with a slash: about the chat, not for the agent."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from mesh.chat.transcript import Note
from mesh.client.replies import ConversationSummary, TreeNode
from mesh.client.rest import MeshClient
from mesh.core.conversation import MessageView
from mesh.display.text import clean, one_line

_LISTED = 10
_MOST_MESSAGE = 2_000
_WHO = {"user": "›", "assistant": " ", "tool": "⚙", "system": "·"}


class Desk(Protocol):
    """What a command may use of the chat."""

    client: MeshClient
    conversation_id: str

    def say(self, *notes: Note) -> None:
        """Prints notes."""
        ...

    def new(self) -> None:
        """The next message begins a conversation."""
        ...

    async def resume(self, conversation_id: str) -> object:
        """Goes on with a conversation."""
        ...


class Quit(Exception):
    """The person wants to leave."""


Command = Callable[[Desk, str], Awaitable[None]]


async def obey(desk: Desk, line: str) -> None:
    """Does what a line with a slash says. Raises `Quit`, and what the client raises."""
    name, _, rest = line[1:].partition(" ")
    found = COMMANDS.get(name)
    if found is None:
        desk.say(Note(f"✗ there is no command /{one_line(name, 40)}; /help lists them", "bad"))
        return
    await found[1](desk, rest.strip())


async def _new(desk: Desk, _: str) -> None:
    desk.new()
    desk.say(Note("a new conversation begins with your next message"))


async def _history(desk: Desk, _: str) -> None:
    if not desk.conversation_id:
        desk.say(Note("nothing was said yet"))
        return
    shown = await desk.client.show(desk.conversation_id)
    desk.say(*(_message(message) for message in shown.messages if message.role != "system"))


async def _resume(desk: Desk, wanted: str) -> None:
    page = await desk.client.page(_LISTED)
    if not wanted:
        rows = (_row(number, entry) for number, entry in enumerate(page.conversations, 1))
        how = "/resume NUMBER or ID goes on with one" if page.conversations else "there are none"
        desk.say(*rows, Note(how))
        return
    by_number = {str(number): entry.id for number, entry in enumerate(page.conversations, 1)}
    await desk.resume(by_number.get(wanted, wanted))


async def _tools(desk: Desk, _: str) -> None:
    found = await desk.client.tools()
    width = max((len(tool.name) for tool in found), default=0)
    for tool in found:
        asks = "  (asks first)" if tool.destructive_hint else ""
        name = f"{clean(tool.name):<{min(width, 40)}}"
        from_where = {"a2a": "(another agent) ", "built_in": "(built in) "}.get(tool.source, "")
        desk.say(Note(f"  {name}  {from_where}{one_line(tool.description, 80)}{asks}", "plain"))
    if not found:
        desk.say(Note("the agent has no tools"))


async def _tree(desk: Desk, _: str) -> None:
    desk.say(*(Note(line, "plain") for line in _drawn(await desk.client.tree())))


async def _help(desk: Desk, _: str) -> None:
    width = max(map(len, COMMANDS))
    desk.say(
        *(Note(f"  /{name:<{width}}  {what}", "plain") for name, (what, _) in COMMANDS.items()),
        Note("  Ctrl-C ends the turn, Ctrl-D leaves, Esc Enter begins a line"),
        Note("  a line with a blank before its / goes to the agent"),
    )


async def _quit(desk: Desk, _: str) -> None:
    raise Quit


COMMANDS: dict[str, tuple[str, Command]] = {
    "new": ("begin a new conversation", _new),
    "history": ("the messages of this conversation", _history),
    "resume": ("list the last conversations, or go on with one", _resume),
    "tools": ("what the agent may use", _tools),
    "tree": ("the agent's nodes", _tree),
    "help": ("this list", _help),
    "quit": ("leave; the conversation stays", _quit),
}


def _row(number: int, entry: ConversationSummary) -> Note:
    waits = "  waits for approval" if entry.status == "waiting_approval" else ""
    title = one_line(entry.title or "-", 50)
    return Note(f"{number:>3}  {clean(entry.updated_at[:16])}  {clean(entry.id)}  {title}{waits}", "plain")


def _message(message: MessageView) -> Note:
    text = clean(message.content[:_MOST_MESSAGE])
    if message.tool_call is not None:
        text = f"{one_line(message.tool_call.name, 60)}: {one_line(text, 100)}"
    more = " …" if len(message.content) > _MOST_MESSAGE else ""
    return Note(f"{_WHO[message.role]} {text}{more}", "dim" if message.role == "tool" else "plain")


def _drawn(node: TreeNode, depth: int = 0) -> Iterator[str]:
    model = f", {one_line(node.model, 40)}" if node.model else ""
    why = f": {one_line(node.description, 80)}" if node.description else ""
    yield f"  {'  ' * depth}- {one_line(node.name, 60)} ({one_line(node.type, 20)}{model}){why}"
    for agent in node.agents:
        yield from _drawn(agent, depth + 1)
