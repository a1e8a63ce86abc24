"""The A2A extensions that the mesh supports, by URI.

They put their data under their URI into the ``metadata`` of a message: the server into that of
``status.message``, the client into that of the message it sends.

HITL (docs/architecture/human-in-the-loop.md and go/api/a2a/hitl.go of kagent-dev/kagent), when the client
activates it:

    asks      {"type": "tool_approval_request", "hint", "nested"?,
               "tools": [{"id", "call_id", "name", "args"}]}
              {"type": "ask_user_request", "id", "questions": [{"question", "choices", "multiple"}]}
    answers   {"type": "tool_approval_response", "approvals": [{"id", "approved", "rejection_reason"?}]}
              {"type": "ask_user_response", "id", "answers": [{"answer": ["…"]}]}

MESH, always and in addition. Its ``approvals`` and ``decisions`` are those of the REST API. An agent that
lists it also promises that a message whose id is a UUID has its effect once, however often it is sent:

    asks      {"approvals": [{"uuid", "kind", "tool_name", "tool_args", "description", …}]}   oldest first
    answers   {"decisions": [{"uuid", "decision", "edited_args"?, "reason"?, "answer"?,
                              "remember"?, "rule"?, "until"?}]}     any of them

An approval that a policy asks for has ``rule``, ``why``, ``parts``, ``remember``, ``suggested_rule`` and
``preview`` as well. A decision that is remembered is remembered by the agent that asked, and by no other.

BUDGET, when the client activates it; a client sends its part to agents that list it. ``depth`` counts the
agents that call each other down to the sender; ``left`` can only tighten the limits of the other agent, and
``agent_path`` is for people. In the card, its params are {"priced": whether ``cost_usd`` is known}:

    message   {"depth": 2, "agent_path": ["main", "search"],
               "left"?: {"max_cost_usd"?, "max_total_tokens"?, "max_llm_calls"?, "max_time_s"?}}
    task      {"spent": {"cost_usd": 0.01 or "unknown", "tokens", "llm_calls"}}   in its own metadata, once it
              has ended; so does the message that is a direct answer

`CancelTask` with the id ``message:`` and that UUID withdraws the message: its task is cancelled, or, if the
message has not arrived yet, it will be refused when it does.

Metadata is a protobuf Struct, in which every number is a double. Arguments are therefore written twice:
``tool_args_json`` and ``edited_args_json`` are their exact JSON text, and take precedence; so do
``suggested_rule_json`` and ``rule_json``.
"""

HITL = "https://kagent.dev/extensions/hitl/v1"
MESH = "urn:mesh:a2a:approvals:v1"
BUDGET = "urn:mesh:a2a:budget:v1"
OF_MESSAGE = "message:"
"""The prefix of a task id that names a task by the message that created it, or will create it."""
