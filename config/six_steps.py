"""The tool that puts the result of six-steps.yaml together: the summary, and what each agent brought."""

import json
from typing import Any

from mesh.tools import tool


@tool(read_only=True)
def report(summary: str, main: str, parts: str) -> str:
    """Puts the result together.

    Args:
        summary: What comes first.
        main: What the main agent answered.
        parts: What the agents beside it answered, as a map node with `with_status` gives it.
    """
    entries = [f"main: {_status(main)}\n{_indented(main)}"] + [
        f"{part['agent']}, {part['item']}: {part['status']}\n{_indented(part['answer'])}"
        for part in _parts(parts)
    ]
    return "\n\n".join([summary, *entries])


def _status(answer: str) -> str:
    # A placeholder that stayed as it is: nothing was written under the key.
    return "no answer" if answer == "{answer}" else "completed"


def _parts(text: str) -> list[dict[str, Any]]:
    return [] if text == "{parts}" else json.loads(text)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
