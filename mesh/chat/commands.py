"""Commands of the chat itself: lines that begin with a slash and do not go to the agent."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from mesh.chat.addressed import addressed
from mesh.chat.transcript import Notice
from mesh.client.responses import TreeNode
from mesh.client.rest import MeshClient
from mesh.core.conversation import MessageView
from mesh.core.errors import Unavailable
from mesh.core.view import ConversationSummary
from mesh.display.text import clean, one_line

_MAX_LISTED = 10
_MAX_MESSAGE = 2_000
_ROLE_MARKS = {"user": "›", "assistant": " ", "tool": "⚙", "system": "·"}


class CommandContext(Protocol):
    """What a command needs of the chat."""

    client: MeshClient
    conversation_id: str

    def notify(self, *notes: Notice) -> None:
        """Prints notes."""
        ...

    def new(self) -> None:
        """The next message begins a conversation."""
        ...

    async def resume(self, conversation_id: str) -> object:
        """Continues a conversation."""
        ...

    async def watch(self) -> None:
        """Shows the agents of this conversation, live."""
        ...

    def interrupt(self) -> bool:
        """Cancels the turn that runs. Returns False if none does."""
        ...


class QuitRequested(Exception):
    """The user wants to leave the chat."""


Command = Callable[[CommandContext, str], Awaitable[None]]


async def run_command(context: CommandContext, line: str) -> None:
    """Runs the command on a line. Raises `QuitRequested`, and what the client raises."""
    name, _, rest = line[1:].partition(" ")
    found = COMMANDS.get(name)
    if found is None:
        context.notify(Notice(f"✗ there is no command /{one_line(name, 40)}; /help lists them", "bad"))
        return
    await found[1](context, rest.strip())


async def _new(context: CommandContext, _: str) -> None:
    context.new()
    context.notify(Notice("a new conversation begins with your next message"))


async def _history(context: CommandContext, _: str) -> None:
    if not context.conversation_id:
        context.notify(Notice("nothing was said yet"))
        return
    shown = await context.client.show(context.conversation_id)
    context.notify(*(_message(message) for message in shown.messages if message.role != "system"))


async def _resume(context: CommandContext, wanted: str) -> None:
    page = await context.client.page(_MAX_LISTED)
    if not wanted:
        rows = (_row(number, entry) for number, entry in enumerate(page.conversations, 1))
        how = "Type /resume NUMBER or /resume ID to continue one." if page.conversations else "there are none"
        missing = [Notice("some are missing: a keeper is away")] if page.incomplete else []
        context.notify(*rows, *missing, Notice(how))
        return
    if page.incomplete and wanted.isdecimal():  # the numbers were those of another list
        raise Unavailable("a keeper is away, so the numbers are others now: give the id, or try again")
    by_number = {str(number): entry.id for number, entry in enumerate(page.conversations, 1)}
    await context.resume(by_number.get(wanted, wanted))


async def _tools(context: CommandContext, _: str) -> None:
    found = await context.client.tools()
    width = max((len(tool.name) for tool in found), default=0)
    for tool in found:
        asks = "  (asks first)" if tool.destructive_hint else ""
        name = f"{clean(tool.name):<{min(width, 40)}}"
        from_where = {"a2a": "(another agent) ", "built_in": "(built in) "}.get(tool.source, "")
        context.notify(Notice(f"  {name}  {from_where}{one_line(tool.description, 80)}{asks}", "plain"))
    if not found:
        context.notify(Notice("the agent has no tools"))


async def _tell(context: CommandContext, line: str) -> None:
    agent_id, text = await _meant(context, line)
    if not text:
        context.notify(Notice("✗ what is to be told? /tell TEXT, or /tell @NAME TEXT", "bad"))
    elif not agent_id:
        context.notify(Notice("nobody works that could be told anything"))
    else:
        await context.client.intervene(agent_id, "comment", text)


async def _stop(context: CommandContext, line: str) -> None:
    if line.startswith("@"):
        agent_id, reason = await _meant(context, line)
        await context.client.intervene(agent_id, "delete", reason)
    elif line:
        context.notify(Notice("✗ /stop cancels the turn, and /stop @NAME [REASON] deletes one agent", "bad"))
    elif not context.interrupt():
        context.notify(Notice("no turn runs"))


async def _meant(context: CommandContext, line: str) -> tuple[str, str]:
    """Returns the id of the agent that a line is for, and the rest of the line. Without a name it is for the
    root agent, whose id is that of its conversation. Raises `NotAddressed`."""
    if not line.startswith("@"):
        return context.conversation_id, line
    at_work = await context.client.agents_at_work(context.conversation_id) if context.conversation_id else []
    agent, rest = addressed(line, at_work)
    return agent.agent_id, rest


async def _tree(context: CommandContext, _: str) -> None:
    if context.conversation_id:
        await context.watch()
    else:
        context.notify(Notice("nothing was said yet"))


async def _nodes(context: CommandContext, _: str) -> None:
    context.notify(*(Notice(line, "plain") for line in _drawn(await context.client.tree())))


async def _help(context: CommandContext, _: str) -> None:
    width = max(map(len, COMMANDS))
    context.notify(
        *(Notice(f"  /{name:<{width}}  {what}", "plain") for name, (what, _) in COMMANDS.items()),
        Notice("  Ctrl-C ends the turn, Ctrl-D leaves, Esc Enter begins a line"),
        Notice("  a line with a blank before its / goes to the agent"),
        Notice("  while a turn runs: a message waits for its end, as commands do that are not about it"),
    )


async def _quit(context: CommandContext, _: str) -> None:
    raise QuitRequested


COMMANDS: dict[str, tuple[str, Command]] = {
    "new": ("begin a new conversation", _new),
    "history": ("the messages of this conversation", _history),
    "resume": ("list the last conversations, or continue one", _resume),
    "tools": ("what the agent may use", _tools),
    "tree": ("the agents at work, live, with keys to step in", _tree),
    "nodes": ("the agent's nodes", _nodes),
    "tell": ("tell the agent at work something now, or with @NAME another one", _tell),
    "stop": ("end the turn as Ctrl-C does, or with @NAME [REASON] delete one agent", _stop),
    "help": ("this list", _help),
    "quit": ("leave; the conversation stays", _quit),
}

_FOR_RUNNING_TURN = {"history", "tools", "nodes", "tree", "tell", "stop", "help"}


def is_for_running_turn(line: str) -> bool:
    """Whether a line is a command that is run while a turn runs, or one that does not exist."""
    name = line[1:].partition(" ")[0]
    return line.startswith("/") and (name in _FOR_RUNNING_TURN or name not in COMMANDS)


def _row(number: int, entry: ConversationSummary) -> Notice:
    waits = "  waits for approval" if entry.status == "waiting_approval" else ""
    title = one_line(entry.title or "-", 50)
    return Notice(f"{number:>3}  {clean(entry.updated_at[:16])}  {clean(entry.id)}  {title}{waits}", "plain")


def _message(message: MessageView) -> Notice:
    text = clean(message.content[:_MAX_MESSAGE])
    if message.tool_call is not None:
        text = f"{one_line(message.tool_call.name, 60)}: {one_line(text, 100)}"
    more = " …" if len(message.content) > _MAX_MESSAGE else ""
    return Notice(f"{_ROLE_MARKS[message.role]} {text}{more}", "dim" if message.role == "tool" else "plain")


def _drawn(node: TreeNode, depth: int = 0) -> Iterator[str]:
    model = f", {one_line(node.model, 40)}" if node.model else ""
    why = f": {one_line(node.description, 80)}" if node.description else ""
    yield f"  {'  ' * depth}- {one_line(node.name, 60)} ({one_line(node.type, 20)}{model}){why}"
    for agent in node.agents:
        yield from _drawn(agent, depth + 1)
