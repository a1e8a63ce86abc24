"""Tests of the promises that every provider of models makes (`mesh.llm.port.Llm`).

A package with a provider inherits them in its own tests, which need pytest and pytest-asyncio:

    class TestAcme(ProviderConformance):
        model = "acme:test"
        path = "/v1/answers"
        wire = acme_wire

They run against the model stub, which answers at ``path`` in the format ``wire``, and never against the
provider's servers. The package has to be installed, so that its entry point is found.
"""

import pytest

# Before the import, so that a failing assertion shows its values.
pytest.register_assert_rewrite("mesh.testing.provider_promises")

from mesh.servers.llm_stub import LlmStub, serve  # noqa: E402
from mesh.servers.llm_stub.script import ModelRequest, ScriptedAnswer, ScriptedCall  # noqa: E402
from mesh.servers.llm_stub.wire import WireFormat, forced_tool, halves, pieces, usage_of  # noqa: E402
from mesh.testing.provider_promises import KEY, ProviderConformance, answer_of, events_of  # noqa: E402

__all__ = [
    "KEY",
    "LlmStub",
    "ModelRequest",
    "ProviderConformance",
    "ScriptedAnswer",
    "ScriptedCall",
    "WireFormat",
    "answer_of",
    "events_of",
    "forced_tool",
    "halves",
    "pieces",
    "serve",
    "usage_of",
]
