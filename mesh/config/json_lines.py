"""Where something is in a JSON file, as people are told it."""

import os
from pathlib import Path

from mesh.config.files import FileText
from mesh.config.problem_texts import spelled
from mesh.config.yaml_tree import Loc, compose
from mesh.core.errors import ConfigError


def where_in(file: FileText, loc: Loc) -> str:
    """Returns ``schemas/order.json:5: properties.total``. Of a Python file, whose text is not that of the
    schema, and of JSON that no YAML parser reads, it has no line."""
    path = short_path(file.path)
    line = None if file.path.endswith(".py") else _line(file, loc)
    at = path if line is None else f"{path}:{line}"
    return f"{at}: {spelled(loc)}" if loc else at


def _line(file: FileText, loc: Loc) -> int | None:
    try:
        # JSON is YAML but for tabs, which may be only between its tokens.
        return compose(file.text.replace("\t", " "), file.path).nearest(loc).line
    except ConfigError:
        return None


def short_path(path: str) -> str:
    """A path as people type it: relative, if it is below the current folder."""
    current = Path.cwd()
    return os.path.relpath(path) if Path(path).is_relative_to(current) else path
