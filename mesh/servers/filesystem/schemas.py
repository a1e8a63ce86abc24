"""The fifteen tools as clients see them: descriptions, arguments, hints, and how they are previewed.

``_meta["mesh"]`` says what a policy and a preview need: ``paths`` are the arguments that are paths; ``risk``
is ``low``, ``medium`` or ``high``; ``preview`` and ``check`` are arguments which make a call one that changes
nothing; ``rest`` is the argument that gives more of a preview that was cut.
"""

from typing import Any

from mesh.servers.filesystem.globs import MAX_PATTERN

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 2**53}
_FROM_0 = {"type": "integer", "minimum": 0, "maximum": 2**53}
_PATTERN = {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN, "pattern": "^[^\\x00]*$"}
_ROOT = {"type": "string", "description": "Name of the root; may be left out if there is one only"}
_PATH = {"type": "string", "description": "Path relative to the root, with /"}
_FLAG = {"type": "boolean"}
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 300, "description": "At most (default 300)"}
_RESULTS = {"type": "integer", "minimum": 1, "maximum": 10_000, "description": "At most (default 100)"}
_IGNORED = {"type": "boolean", "description": "Also look at what .gitignore files exclude (default false)"}
_DEPTH = {
    "type": "integer",
    "minimum": 1,
    "maximum": 10_000,
    "description": "1: only what is in the folder itself",
}
_CHANGING = {
    "expect": {
        "type": "string",
        "maxLength": 400,
        "description": "What must be there now, or nothing is changed: the sha256 of the file, 'absent', or "
        "the expect of a preview",
    },
    "dry_run": _FLAG | {"description": "Change nothing; say what would be done, and what to expect"},
    "check": _FLAG | {"description": "Change nothing; say whether a call with these arguments was applied"},
    "preview_offset": _FROM_0
    | {"description": "With dry_run: more of a preview that is cut, from its next_offset on"},
}

_RISK_OF_REMOVAL = ("remove_file", "remove_folder")
_LOOKS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_ADDS = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_DESTROYS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}


def _tool(
    name: str,
    description: str,
    properties: dict[str, Any],
    required: tuple[str, ...] = (),
    hints: dict[str, bool] = _LOOKS,
    **more: Any,
) -> dict[str, Any]:
    roots = {} if "source_root" in properties or name == "list_roots" else {"root": _ROOT}
    changing = _CHANGING if not hints["readOnlyHint"] else {}
    schema = {
        "type": "object",
        "properties": {**roots, **properties, **changing},
        "required": list(required),
        "additionalProperties": False,
        **more,
    }
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": hints,
        "_meta": {"mesh": _meta(name, properties, changes=bool(changing))},
    }


def _meta(name: str, properties: dict[str, Any], *, changes: bool) -> dict[str, Any]:
    paths = [key for key in properties if key.endswith("path")]
    if not changes:
        return {"paths": paths, "risk": "low"}
    risk = "high" if name in _RISK_OF_REMOVAL else "medium"
    ways = {"preview": {"dry_run": True}, "check": {"check": True}, "rest": "preview_offset"}
    return {"paths": paths, "risk": risk, **ways}


_EDIT = {
    "type": "object",
    "properties": {
        "old": _TEXT | {"description": "Text that is there exactly once, unless all is true"},
        "new": _TEXT,
        "all": _FLAG | {"description": "Replace every occurrence (default false)"},
    },
    "required": ["old", "new"],
    "additionalProperties": False,
}
_TRANSFER: dict[str, Any] = {
    "source_root": _ROOT,
    "source_path": _PATH,
    "dest_root": _ROOT,
    "dest_path": _PATH,
    "overwrite": _FLAG | {"description": "Replace a file that is there (default false)"},
}
_BOTH = ("source_path", "dest_path")

TOOLS: list[dict[str, Any]] = [
    _tool("list_roots", "List the roots: the folders whose files the other tools use.", {}),
    _tool(
        "list_folder",
        "List a folder: names, types, sizes, and times. '.' is the root.",
        {"path": _PATH},
    ),
    _tool(
        "read_file",
        "Read a file, or a page of it, by bytes or by lines. Gives the file's sha256, and where to go on if "
        "there is more. Binary files come as base64.",
        {
            "path": _PATH,
            "offset_bytes": _FROM_0,
            "limit_bytes": _COUNT,
            "offset_lines": _COUNT | {"description": "The first line, from 1"},
            "limit_lines": _COUNT,
        },
        ("path",),
    ),
    _tool(
        "write_file",
        "Write a text file: replace its content, append to it, or create it. Folders that are missing are "
        "made. Encoding, byte order mark and Windows line endings of an existing file are kept.",
        {
            "path": _PATH,
            "content": _TEXT,
            "mode": {"enum": ["overwrite", "append", "create_only"], "description": "Default: overwrite"},
        },
        ("path", "content"),
        _DESTROYS,
    ),
    _tool("remove_file", "Remove a file, or a link itself.", {"path": _PATH}, ("path",), _DESTROYS),
    _tool(
        "patch_file",
        "Change parts of a text file, all or nothing: with a unified patch, or with edits that replace a "
        "text that occurs exactly once. A file that is missing counts as empty.",
        {
            "path": _PATH,
            "patch": _TEXT | {"description": "A unified diff of this one file"},
            "edits": {"type": "array", "items": _EDIT, "minItems": 1, "maxItems": 1000},
        },
        ("path",),
        _DESTROYS,
    ),
    _tool(
        "create_folder",
        "Create a folder, and those above it that are missing.",
        {"path": _PATH},
        ("path",),
        _ADDS,
    ),
    _tool(
        "remove_folder",
        "Remove a folder with all that is in it. Links in it are removed, and what they lead to is not.",
        {"path": _PATH},
        ("path",),
        _DESTROYS,
    ),
    _tool(
        "stat_file",
        "Tell type, size and times of a file, folder or link; of a link also what it leads to.",
        {"path": _PATH},
        ("path",),
    ),
    _tool(
        "hash_file",
        "Hash a file.",
        {"path": _PATH, "algorithm": {"enum": ["md5", "sha1", "sha256"], "description": "Default: sha256"}},
        ("path",),
    ),
    _tool("permissions_file", "Tell owner, group and mode of a file or folder.", {"path": _PATH}, ("path",)),
    _tool(
        "copy",
        "Copy a file or a folder, also to another root. Links in a folder are copied as links.",
        _TRANSFER,
        _BOTH,
        _DESTROYS,
    ),
    _tool("move", "Move or rename a file, a folder, or a link itself.", _TRANSFER, _BOTH, _DESTROYS),
    _tool(
        "grep",
        "Search the lines of text files for a regular expression (syntax of Rust, linear time).",
        {
            "pattern": _PATTERN,
            "path": _PATH,
            "glob_filter": _PATTERN | {"description": "Only files that match, as *.py or src/**/*.{js,ts}"},
            "case_insensitive": _FLAG,
            "context_lines": {"type": "integer", "minimum": 0, "maximum": 20},
            "max_results": _RESULTS,
            "timeout_seconds": _SECONDS,
            "max_depth": _DEPTH,
            "ignored": _IGNORED,
        },
        ("pattern",),
    ),
    _tool(
        "glob",
        "Find files, folders and links by their paths, relative to the path that is searched: by a pattern "
        "as **/*.py, where one without a slash matches names at any depth, or by a regular expression.",
        {
            "pattern": _PATTERN,
            "regex": _PATTERN,
            "path": _PATH,
            "max_results": _RESULTS,
            "timeout_seconds": _SECONDS,
            "max_depth": _DEPTH,
            "type_filter": {"enum": ["file", "directory", "symlink", "all"], "description": "Default: all"},
            "ignored": _IGNORED,
        },
    ),
]
NAMES = tuple(str(tool["name"]) for tool in TOOLS)
