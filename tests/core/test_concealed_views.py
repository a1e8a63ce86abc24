"""What people are shown of the messages between an agent and its model."""

from mesh.core.concealed import as_agents_see
from mesh.core.events import LlmCall, ToolResult, Validation
from mesh.core.history import messages_of
from mesh.core.places import ROOT


def test_an_objection_and_a_result_that_quote_a_draft_are_shown_without_it() -> None:
    said = LlmCall(step="0/llm/0", model="m", text="secret draft", draft=True)
    judged = Validation(
        step="0/validation/0.0", name="schema", kind="schema", number=1, of=3, feedback="'secret'", shown="no"
    )
    result = ToolResult(step="0/tool/1.0", call_id="c", tool="complete_task", content="'secret'", shown="no")
    seen = [as_agents_see(event) for event in (said, judged, result)]
    assert "secret" not in str(messages_of(seen, ROOT)) and "secret" not in str(seen)
