"""Around the import of a Python file: its folder, and modules that another one of the same name hides."""

import os
import sys
from pathlib import Path
from types import ModuleType


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
