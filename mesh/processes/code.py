"""Imports a Python file from its text, as the module that it would be."""

import linecache
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def import_code(code: str, path: Path) -> ModuleType:
    """Returns the module. The folder of ``path`` comes last on the search path, for the files beside it:
    packages import each other at any time, and a file ``email.py`` must not be what they get.

    The text is not read from ``path``, where another version of it may be by now. Raises what it raises.
    """
    module = ModuleType(_name(path))
    if path.parent.is_dir() and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    # For tracebacks, which would show the lines of the file on the disk.
    linecache.cache[str(path)] = (len(code), None, code.splitlines(keepends=True), str(path))
    exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def _name(path: Path) -> str:
    """The name of the file, unless that would hide another module."""
    name = path.stem
    is_free = name.isidentifier() and name not in sys.modules and _is_own(name, path)
    return name if is_free else f"file_{''.join(c if c.isalnum() else '_' for c in name)}"


def _is_own(name: str, path: Path) -> bool:
    """Whether no other module has the name, also none that was not imported yet."""
    spec = find_spec(name)
    return spec is None or spec.origin == str(path)
