"""The interpreter of this process, in a sandbox that has held against its proofs."""

import atexit

from mesh.python.interpreter import Interpreter, PythonLimits
from mesh.python.python_proofs import kind_that_holds
from mesh.sandbox.sandbox import Kind


class PythonRefused(Exception):
    """No sandbox holds here, so that no code is run. The text says why not, for people."""


_kinds: list[Kind] = []
_interpreters: dict[PythonLimits, Interpreter] = {}


async def why_refused() -> str:
    """Why no code can be run on this machine, for people; empty if it can."""
    if _kinds:
        return ""
    kind, wrong = await kind_that_holds()
    if kind is None:
        return "; ".join(("no sandbox holds on this machine", *wrong))
    _kinds.append(kind)
    return ""


async def proven_interpreter(limits: PythonLimits) -> Interpreter:
    """The one that all nodes of this process with these limits share. Raises `PythonRefused`."""
    if problem := await why_refused():
        raise PythonRefused(problem)
    if limits not in _interpreters:
        _interpreters[limits] = Interpreter(_kinds[0], limits)
    return _interpreters[limits]


@atexit.register
def _close() -> None:
    for interpreter in _interpreters.values():
        interpreter.close()
