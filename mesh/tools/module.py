"""Imports a file of tools from its text, as the module that it would be."""

import linecache
import os
import sys
from pathlib import Path
from types import ModuleType


def import_code(code: str, path: Path) -> ModuleType:
    """Returns the module. The folder of ``path`` comes first on the search path, for the files beside it.

    The text is not read from ``path``, where another version of it may be by now. Raises what it raises.
    """
    if path.parent.is_dir():
        sys.path.insert(0, str(path.parent))
    module = ModuleType(_name(path))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    # For tracebacks, which would show the lines of the file on the disk.
    linecache.cache[str(path)] = (len(code), None, code.splitlines(keepends=True), str(path))
    exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def enter_folder(path: Path) -> None:
    """Makes the folder of a file the working directory, wherever the mesh was started. A machine that has no
    such folder takes the home directory."""
    folders = (str(path.parent), os.path.expanduser("~"), "/")  # noqa: PTH111 - it raises nothing
    os.chdir(next(folder for folder in folders if os.access(folder, os.X_OK)))


def _name(path: Path) -> str:
    """The name of the file, unless that would hide another module."""
    name = path.stem
    is_free = name.isidentifier() and name not in sys.modules and name not in sys.stdlib_module_names
    return name if is_free else f"tools_file_{''.join(c if c.isalnum() else '_' for c in name)}"
