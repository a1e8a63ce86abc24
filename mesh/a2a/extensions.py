"""The A2A extensions that the mesh speaks, by URI.

Both put their data under their URI into the ``metadata`` of a message: of ``status.message`` the server, of
its own message the client.

HITL (docs/architecture/human-in-the-loop.md and go/api/a2a/hitl.go of kagent-dev/kagent), when the client
activates it:

    asks      {"type": "tool_approval_request", "hint", "nested"?,
               "tools": [{"id", "call_id", "name", "args"}]}
              {"type": "ask_user_request", "id", "questions": [{"question", "choices", "multiple"}]}
    answers   {"type": "tool_approval_response", "approvals": [{"id", "approved", "rejection_reason"?}]}
              {"type": "ask_user_response", "id", "answers": [{"answer": ["…"]}]}

MESH, always, beside it. Its ``approvals`` and ``decisions`` are those of the REST API. It says besides that a
message id that is a UUID counts once, however often the message is sent:

    asks      {"approvals": [{"uuid", "kind", "tool_name", "tool_args", "description", …}]}   oldest first
    answers   {"decisions": [{"uuid", "decision", "edited_args"?, "reason"?, "answer"?}]}     any of them

`CancelTask` with the id ``message:`` and that UUID withdraws the message: its task is cancelled, and if it
has not arrived yet, it will be refused.

Metadata is a protobuf Struct, in which every number is a double. So these arguments stand there twice:
``tool_args_json`` and ``edited_args_json`` are their JSON text, and count.
"""

HITL = "https://kagent.dev/extensions/hitl/v1"
MESH = "urn:mesh:a2a:approvals:v1"
OF_MESSAGE = "message:"
"""Begins the id of a task that is named by the message that began it, or is about to."""
