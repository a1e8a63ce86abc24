"""The output of an answer: its JSON value, as people put another one in its place. Pure."""

import json
from typing import Any

from mesh.llm.answer_check import MAX_ANSWER_CHARS
from mesh.mcp.schema import ANSWER, problems


def text_of(schema: dict[str, Any] | None, output: Any) -> str:
    """An output as the text of an answer: JSON if the answer has a schema."""
    return str(output) if schema is None else json.dumps(output, ensure_ascii=False)


def problem_of_edit(schema: dict[str, Any] | None, edited: dict[str, Any]) -> str:
    """What is wrong with the answer that a person has put in the place of another; empty if nothing is."""
    if edited.keys() != {"output"}:
        return 'expected {"output": …} and nothing else'
    if len(text_of(schema, edited["output"])) > MAX_ANSWER_CHARS:
        return f"output: expected at most {MAX_ANSWER_CHARS:,} characters"
    if schema is not None:
        return problems(schema, edited["output"], ANSWER)
    if not isinstance(edited["output"], str):
        return "output: expected a text"
    return "" if edited["output"].strip() else "output: is empty; expected an answer, or a rejection"
