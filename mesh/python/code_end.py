"""How a call of ``python`` ended, in the words that a model reads."""

import msgspec


class CodeEnd(msgspec.Struct, frozen=True):
    """``logs`` is what the code has written to stdout and stderr. ``value`` is that of its last expression as
    JSON, None if there is none. ``error`` is what went wrong, empty if nothing did."""

    logs: str = ""
    value: str | None = None
    error: str = ""

    @property
    def text(self) -> str:
        """The result of the tool.

        >>> print(CodeEnd("hello\\n", "3").text)
        Logs:
        hello
        <BLANKLINE>
        Result: 3
        >>> CodeEnd().text, CodeEnd(error="ValueError: no").text
        ('(no return value)', 'Error: ValueError: no')
        """
        logs = f"Logs:\n{self.logs.rstrip()}\n\n" if self.logs.strip() else ""
        if self.error:
            return f"{logs}Error: {self.error}"
        return logs + ("(no return value)" if self.value is None else f"Result: {self.value}")


class Logs:
    """What the code writes: the beginning and the end of it, ``most`` bytes in all."""

    def __init__(self, most: int) -> None:
        self._most_of_each = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._most_of_each - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._most_of_each:
            del self._tail[: -self._most_of_each]

    def text(self) -> str:
        """What is kept, with a note where something is left out."""
        tail = self._tail[-self._most_of_each :]
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return (self._head + tail).decode("utf-8", "replace")
        note = f"\n[… {left_out:,} bytes are left out here …]\n"
        return self._head.decode("utf-8", "ignore") + note + tail.decode("utf-8", "ignore")
