"""Amounts that model calls cost. Pure."""

import msgspec

MOST_REPORTED = 10**18
"""What one event counts as at most: a provider or an imported journal may say anything."""


class Amount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost in 10⁻⁹ USD, tokens, and model calls."""

    nusd: int = 0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.nusd + other.nusd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.nusd - other.nusd, self.tokens - other.tokens, self.calls - other.calls)

    def __bool__(self) -> bool:
        return self != NOTHING


NOTHING = Amount()


def reported(nusd: int | None, tokens: int = 0, calls: int = 0) -> Amount:
    """What was reported, as far as it can be: see `MOST_REPORTED`."""
    return Amount(_bounded(nusd or 0), _bounded(tokens), _bounded(calls))


def _bounded(count: int) -> int:
    return count if 0 <= count <= MOST_REPORTED else min(max(0, count), MOST_REPORTED)
