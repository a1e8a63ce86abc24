"""Imports a file of tools from its text, as the module that it would be."""

import linecache
import os
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


def enter_folder(path: Path) -> None:
    """Makes the folder of a file the working directory, wherever the mesh was started. A machine that has no
    such folder takes the home directory."""
    folders = (str(path.parent), os.path.expanduser("~"), "/")  # noqa: PTH111 - it raises nothing
    os.chdir(next(folder for folder in folders if os.access(folder, os.X_OK)))


def hidden_file(error: BaseException, folder: Path) -> str:
    """What to do about an error for which the reason is that an import found another module than the file of
    that name in ``folder``. An empty text if that is not so."""
    name = _missed_in(error).partition(".")[0]
    file, found = folder / f"{name}.py", sys.modules.get(name)
    if found is None or not file.is_file() or Path(getattr(found, "__file__", None) or "").parent == folder:
        return ""
    owner = "the standard library" if name in sys.stdlib_module_names else "an installed package"
    return f"import {name} finds the module of {owner}, and not {file}; rename this file"


def _missed_in(error: BaseException) -> str:
    """The name of the module that lacks what was asked of it; an empty text if that is not the error."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__
    return error.name or "" if isinstance(error, ImportError) else ""


def _name(path: Path) -> str:
    """The name of the file, unless that would hide another module."""
    name = path.stem
    is_free = name.isidentifier() and name not in sys.modules and _is_own(name, path)
    return name if is_free else f"tools_file_{''.join(c if c.isalnum() else '_' for c in name)}"


def _is_own(name: str, path: Path) -> bool:
    """Whether no other module has the name, also none that was not imported yet."""
    spec = find_spec(name)
    return spec is None or spec.origin == str(path)
