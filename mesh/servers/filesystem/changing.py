"""The tools that change one file or folder: ``write_file``, ``patch_file``, ``remove_file``,
``create_folder`` and ``remove_folder``.

Each does one of three things: it looks up whether it was applied (``check``), it tells what it would do
(``dry_run``), or it does that. The last two are the same up to the very end.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from mesh.servers.filesystem import unified_diff
from mesh.servers.filesystem.bounds import MAX_CONTENT, TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.expectations import ABSENT, Expected, check_after, check_before, outcome, parsed
from mesh.servers.filesystem.expectations import FOLDER as A_FOLDER
from mesh.servers.filesystem.paging import read
from mesh.servers.filesystem.patching import edited, patched
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, kind
from mesh.servers.filesystem.target import Target, targeted
from mesh.servers.filesystem.texts import TextForm, form_of, like
from mesh.servers.filesystem.tree import TreeSize, digest, hash_of, summed_up
from mesh.servers.filesystem.unified_diff import ChangePreview


class Change(NamedTuple):
    """A change that is ready: the states before and after it, what it would show, and how to apply it."""

    states: tuple[str, str]
    preview: Callable[[], ChangePreview]
    apply: Callable[[], None]
    result: dict[str, Any]


def carried_out(call: Call, path: str, change: Change) -> dict[str, Any]:
    """Applies a change, or says what it would do. Raises `StateConflict` if it is not the expected one."""
    before, after = change.states
    check_before(call.text("expect"), before, path)
    check_after(call.text("expect"), after, path)
    if call.flag("dry_run"):
        page = change.preview().page(call.number("preview_offset", 0))
        return page | {"expect": str(Expected(before, after))}
    call.stop.check()
    change.apply()
    return change.result


class Content(NamedTuple):
    """A file before a change. ``text`` is None if there is no file, or if it is binary or large."""

    state: str
    text: str | None
    form: TextForm
    size: int
    raw: bytes | None


_NOTHING = Content(ABSENT, None, TextForm(), 0, None)


def present(target: Target, stop: TimeLimit, *, hashed: bool) -> Content:
    """What is there now. A large file is not read, and hashed only if that is wanted."""
    if target.found is None:
        return _NOTHING
    with target.opened() as descriptor:
        size = os.fstat(descriptor).st_size
        if size > MAX_CONTENT:
            state = hash_of(descriptor, stop) if hashed else "unknown"
            return Content(state, None, TextForm(), size, None)
        raw = read(descriptor, 0, MAX_CONTENT + 1)
    form = form_of(raw, is_whole=True)
    text = None if form is None else form.decode(raw)
    return Content(_hash(raw), text, form or TextForm(), len(raw), raw)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_file(call: Call) -> dict[str, Any]:
    mode, text = call.text("mode") or "overwrite", call.text("content") or ""
    with targeted(call.root(), call.parts()) as target:
        target.check_regular()
        before = present(target, call.stop, hashed=call.wants_states)
        if call.flag("check"):
            return outcome(before.state, _known(call, mode, text, before), call.path())
        if mode == "create_only" and before.state != ABSENT:
            raise FileRefusal(f"{call.path()}: already exists, and mode is create_only")
        return _written(call, target, before, _bytes(text, mode, before, call.path()), {"mode": mode})


def _bytes(text: str, mode: str, before: Content, path: str) -> bytes:
    """The new content of a file."""
    if mode == "append" and before.state != ABSENT:
        if before.raw is None:
            raise FileRefusal(
                f"{path}: has {before.size} bytes; files over {MAX_CONTENT} are not appended to"
            )
        added = _encoded(TextForm(before.form.encoding), like(text, before.text or ""), path)
        return before.raw + added
    text = like(text, before.text or "")
    try:
        return before.form.encode(text)
    except UnicodeEncodeError:  # Latin-1 does not have all characters; the result says what became of it
        return _encoded(TextForm(), text, path)


def _encoded(form: TextForm, text: str, path: str) -> bytes:
    try:
        return form.encode(text)
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise FileRefusal(
            f"{path}: the file is {form.name}, which cannot hold the character {character!r}"
        ) from None


def _known(call: Call, mode: str, text: str, before: Content) -> Expected:
    """The states before and after a call of ``write_file``, as far as its arguments tell."""
    known = parsed(call.text("expect"))
    after = known.after
    if after is None and mode == "append":
        after = _after_append(text, known.before, before)
    elif after is None:
        after = _hash(_bytes(text, mode, before, ""))
    return Expected(known.before or (ABSENT if mode == "create_only" else None), after)


def _after_append(text: str, expected: str | None, now: Content) -> str | None:
    """The present state, if it is the expected one with the text behind it."""
    if expected == ABSENT:
        return _hash(text.encode("utf-8", "replace"))
    raw = now.raw or b""
    for ending in ("\n", "\r\n"):
        added = text.replace("\n", ending).encode(now.form.encoding, "replace")
        if raw.endswith(added) and _hash(raw[: len(raw) - len(added)]) == expected:
            return now.state
    return None


def _written(
    call: Call, target: Target, before: Content, content: bytes, more: dict[str, Any]
) -> dict[str, Any]:
    after = _hash(content)
    form = form_of(content, is_whole=True)

    def preview() -> ChangePreview:
        states = (before.state, after)
        if form is None or (before.text is None and before.state != ABSENT):
            said = f"{before.size} bytes are replaced by {len(content)}, which are not text"
            return unified_diff.told(said, call.path(), states)
        return unified_diff.preview(call.path(), before.text, form.decode(content), states)

    result = {"path": call.path(), "size": len(content), **more, "sha256": after, "before": before.state}
    encoding = {"encoding": form.name if form is not None else "binary"}
    change = Change((before.state, after), preview, lambda: target.put(content), result | encoding)
    return carried_out(call, call.path(), change)


def patch_file(call: Call) -> dict[str, Any]:
    if call.given("patch") == call.given("edits"):
        raise FileRefusal("give patch or edits, and exactly one of them")
    with targeted(call.root(), call.parts()) as target:
        before = present(target, call.stop, hashed=call.wants_states)
        if call.flag("check"):
            return outcome(before.state, parsed(call.text("expect")), call.path())
        # Before the patch: if the file has changed, that is what matters, and not which line no longer fits.
        check_before(call.text("expect"), before.state, call.path())
        if before.text is None and before.state != ABSENT:
            raise FileRefusal(
                f"{call.path()}: is binary, or larger than {MAX_CONTENT} bytes: it is not patched"
            )
        text, count = _patched(call, before.text or "")
        content = _encoded(before.form, text, call.path())
        return _written(call, target, before, content, {"hunks_applied": count})


def _patched(call: Call, text: str) -> tuple[str, int]:
    patch = call.text("patch")
    if patch is not None:
        return patched(text, patch, call.stop.check)
    edits = call.arguments["edits"]
    return edited(text, edits, call.stop.check), len(edits)


def remove_file(call: Call) -> dict[str, Any]:
    with targeted(call.root(), call.parts()) as target:
        if call.flag("check"):
            return _looked_up(call, target)
        if target.found is None:
            raise FileRefusal(f"{call.path()}: path not found")
        if stat.S_ISDIR(target.found.st_mode):
            raise FileRefusal(f"{call.path()}: is a directory: use remove_folder")
        return carried_out(call, call.path(), _removal(call, target))


def _looked_up(call: Call, target: Target) -> dict[str, Any]:
    """What came of a removal."""
    expected = Expected(parsed(call.text("expect")).before, ABSENT)
    return outcome(state_of(target, call.stop), expected, call.path())


def _removal(call: Call, target: Target) -> Change:
    state = state_of(target, call.stop) if call.wants_states else ""

    def preview() -> ChangePreview:
        assert target.found is not None
        if stat.S_ISREG(target.found.st_mode):
            before = present(target, call.stop, hashed=True)
            if before.text is not None:
                return unified_diff.preview(call.path(), before.text, None, (before.state, ABSENT))
        what = f"the {kind(target.found.st_mode)} {call.path()} with {target.found.st_size} bytes is removed"
        return unified_diff.told(what, call.path(), (state, ABSENT))

    return Change((state, ABSENT), preview, target.take_away, {"path": call.path(), "removed": True})


def state_of(target: Target, stop: TimeLimit) -> str:
    """The state of whatever is there."""
    if target.found is None:
        return ABSENT
    if stat.S_ISREG(target.found.st_mode):
        with target.opened() as descriptor:
            return hash_of(descriptor, stop)
    if stat.S_ISDIR(target.found.st_mode):
        with target.root.opened(target.parts, FOLDER) as top:
            return A_FOLDER + digest(top, stop)
    if stat.S_ISLNK(target.found.st_mode):
        return f"symlink:{_hash(os.fsencode(os.readlink(target.name, dir_fd=target.folder)))}"
    return f"{kind(target.found.st_mode)}:{target.found.st_ino}"


def create_folder(call: Call) -> dict[str, Any]:
    if not call.parts():
        return _created(call, None)
    with targeted(call.root(), call.parts()) as target:
        if target.found is not None and not stat.S_ISDIR(target.found.st_mode):
            raise FileRefusal(f"{call.path()}: exists, and is a {kind(target.found.st_mode)}")
        return _created(call, None if target.found is not None else target)


def _created(call: Call, missing: Target | None) -> dict[str, Any]:
    """Makes a folder, if it is missing."""
    state = A_FOLDER if missing is None else ABSENT
    if call.flag("check"):
        return outcome(state, Expected(ABSENT, A_FOLDER), call.path())

    def preview() -> ChangePreview:
        text = f"the folder {call.path()} {'is created' if missing else 'exists already'}"
        return unified_diff.told(text, call.path(), (state, A_FOLDER))

    def apply() -> None:
        if missing is not None:
            missing.publish(lambda folder, name: os.mkdir(name, 0o777, dir_fd=folder), replace=False)

    result = {"path": call.path(), "created": missing is not None}
    return carried_out(call, call.path(), Change((state, A_FOLDER), preview, apply, result))


def remove_folder(call: Call) -> dict[str, Any]:
    with targeted(call.root(), call.parts()) as target:
        if call.flag("check"):
            return _looked_up(call, target)
        if target.found is None:
            raise FileRefusal(f"{call.path()}: path not found")
        if not stat.S_ISDIR(target.found.st_mode):
            raise FileRefusal(f"{call.path()}: is a {kind(target.found.st_mode)}, no folder: use remove_file")
        target.check_not_mounted()
        with target.root.opened(target.parts, FOLDER) as top:
            total = summed_up(target.root, target.parts, top, call.stop)
        return carried_out(call, call.path(), _folder_removal(call, target, total))


def _folder_removal(call: Call, target: Target, total: TreeSize) -> Change:
    state = state_of(target, call.stop) if call.wants_states else ""
    counts = {"files": total.files, "folders": total.folders, "links": total.links, "bytes": total.size}

    def preview() -> ChangePreview:
        text = (
            f"the folder {call.path()} is removed, with {total.files} files, {total.folders} folders and "
            f"{total.links} links in it, {total.size} bytes in all"
        )
        return unified_diff.told(text, call.path(), (state, ABSENT))

    result = {"path": call.path(), "removed": True, **counts}
    return Change((state, ABSENT), preview, target.take_away, result)
