"""What Landlock has to allow for a box: a list of paths, each with what may be done there.

What is allowed in a folder is allowed in all that is in it: nothing can be taken away again further down.
So a folder that has something hidden or frozen in it is not allowed itself, only the other things in it,
one by one. Then no file can be made in it: this is the price, and bubblewrap does not ask it. The same holds
for a folder that may be read, and has a root with something hidden in it.
"""

import os
from collections.abc import Callable, Iterable

from mesh.sandbox.box import Box
from mesh.sandbox.nesting import between, is_below
from mesh.sandbox.order import Restriction
from mesh.sandbox.restriction import DEVICE, LIST, READ, WRITE

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ListFolder = Callable[[str], Iterable[str]]


def restriction_of(box: Box, listed: ListFolder) -> Restriction:
    """``listed`` gives the paths in a folder. No path that is returned leads through a link."""
    hidden = {path for path, _ in box.covered.hidden}
    frozen = {path for path, _ in box.covered.frozen}
    read = [os.path.realpath(path) for path in box.read]
    above = {*box.covered.above, *_split(box.roots, hidden | frozen), *_split(read, hidden)}

    proc = ("/proc",) if box.has_proc else ()

    def allowed(path: str, access: int) -> Iterable[tuple[str, int]]:
        if path in hidden:
            return
        access = READ if path in frozen else access
        if path not in above:
            yield path, access
            return
        # Names may be seen, unless a folder in here is hidden: its names would be seen, too.
        if not any(is_folder and is_below(other, path) for other, is_folder in box.covered.hidden):
            yield path, LIST
        for each in listed(path):
            yield from allowed(each, access)

    return Restriction(
        paths=(
            *((os.path.realpath(path), READ) for path in (*box.system, *proc)),
            *((os.path.realpath(path), DEVICE) for path in _DEVICES),
            (os.path.realpath(box.temporary), WRITE),
            *(each for path in read for each in allowed(path, READ)),
            *(each for root in box.roots for each in allowed(root, WRITE)),
        ),
        network=box.network,
    )


def _split(folders: Iterable[str], covered: Iterable[str]) -> set[str]:
    """The folders that have something covered in them, and those between these and what is covered."""
    pairs = ((folder, path) for folder in folders for path in covered if is_below(path, folder))
    return {each for folder, path in pairs for each in (folder, *between(folder, path))}
