"""``mesh llm-stub``: a scripted HTTP server that speaks the wire formats of three model providers.

OpenAI chat completions, Anthropic messages and Gemini generateContent, plain and streaming; tests
run the real SDKs against it, and load tests use it for a model of known latency. Also ``GET
/health``, ``GET /calls`` (what was asked, a JSON list) and ``DELETE /calls``.
"""

from mesh.servers.llm_stub.recorded import RecordedRequest
from mesh.servers.llm_stub.server import LlmStub, serve

__all__ = ["LlmStub", "RecordedRequest", "serve"]
