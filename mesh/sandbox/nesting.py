"""Which paths are in which folder, by their texts alone. Pure."""


def is_below(path: str, folder: str) -> bool:
    """Whether a path leads to something in a folder, at any depth. Both without links.

    >>> is_below("/ws/a/b", "/ws"), is_below("/ws-2/a", "/ws"), is_below("/ws", "/ws"), is_below("/ws", "/")
    (True, False, False, True)
    """
    return path.startswith(f"{folder.rstrip('/')}/") and path != folder


def between(folder: str, path: str) -> set[str]:
    """The folders between a folder and a path below it.

    >>> sorted(between("/ws", "/ws/a/b/c")), sorted(between("/", "/ws/a"))
    (['/ws/a', '/ws/a/b'], ['/ws'])
    """
    start = folder.rstrip("/")
    parts = path[len(start) + 1 :].split("/")[:-1]
    return {f"{start}/{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1)}
