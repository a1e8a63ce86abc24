"""Configured values, which may be secrets, are taken out of what is shown. Pure."""

import json
from collections.abc import Iterable, Iterator

MIN_SECRET = 8
"""Shorter values, such as `1` or `true`, are no secrets, and redacting them would spoil every line."""


class Redaction:
    """Takes values out of texts, in the forms in which programs write them.

    >>> redacted = Redaction(["first line\\nsecond line", "short"])
    >>> redacted("    second line"), redacted(str(KeyError("first line\\nsecond line"))), redacted("short")
    ('    ***', "'***'", 'short')
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)

    @property
    def longest(self) -> int:
        """Characters of the longest form."""
        return len(self._forms[0]) if self._forms else 0

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, "***")
        return text


def _forms(value: str) -> Iterator[str]:
    """The value and each of its lines; as Python and JSON write them; and all that again within JSON."""
    for part in (value, *(line.strip() for line in value.splitlines())):
        if len(part) >= MIN_SECRET:
            for form in (part, repr(part)[1:-1], json.dumps(part)[1:-1]):
                yield from (form, json.dumps(form)[1:-1])
