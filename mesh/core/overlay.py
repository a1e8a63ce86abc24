"""A mapping as it would be after some changes, without a copy of it. Pure."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Overlay(MutableMapping[K, V]):
    """Changes over a mapping, which stays as it is, and must not be changed by others meanwhile. A look or a
    change costs the same however large the mapping is."""

    def __init__(self, below: Mapping[K, V]) -> None:
        self._below = below
        self._changed: dict[K, V] = {}
        self._removed: set[K] = set()

    def __getitem__(self, key: K) -> V:
        if key in self._changed:
            return self._changed[key]
        if key in self._removed:
            raise KeyError(key)
        return self._below[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._changed[key] = value
        self._removed.discard(key)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._changed.pop(key, None)
        if key in self._below:
            self._removed.add(key)

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._below if key not in self._removed and key not in self._changed)
        yield from self._changed

    def __len__(self) -> int:
        new = sum(key not in self._below for key in self._changed)
        return len(self._below) - len(self._removed) + new

    def __contains__(self, key: object) -> bool:
        return key in self._changed or (key not in self._removed and key in self._below)

    def has_changed(self, key: K) -> bool:
        """Whether the value of a key was set here."""
        return key in self._changed
