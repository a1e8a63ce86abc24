"""The command that a call runs, parsed: a shell command in its arguments, or a program with its arguments."""

from mesh.policy.commands import ParsedCommand
from mesh.policy.parts import of_program
from mesh.policy.policy_call import PolicyCall
from mesh.policy.shell import parse


async def command_of_call(call: PolicyCall) -> ParsedCommand | None:
    """What the command of a call may run; None if it has none."""
    if not call.has_command:
        return None
    text = call.arguments.get(call.command) if call.command else None
    exe = call.arguments.get(call.exe[0]) if call.exe else None
    args = (call.arguments.get(call.exe[1]) or []) if call.exe else []
    if text is not None and exe is not None:
        return ParsedCommand(why_ask="it is both a shell command and a program")
    if isinstance(text, str):
        return await parse(text)
    if isinstance(exe, str) and isinstance(args, list) and all(isinstance(each, str) for each in args):
        return of_program(exe, args)
    return ParsedCommand(why_ask="it is no text")
