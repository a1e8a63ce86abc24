"""Every provider of the mesh keeps the promises of the port: the real SDK against the scripted server."""

from mesh.servers.llm_stub import anthropic_wire, gemini_wire, openai_wire
from mesh.testing.conformance import ProviderConformance


class TestOpenAI(ProviderConformance):
    model = "openai:gpt-test"
    wire = openai_wire
    path = "/chat/completions"
    base_path = "/v1"


class TestAnthropic(ProviderConformance):
    model = "claude-test"
    wire = anthropic_wire
    path = "/messages"


class TestGemini(ProviderConformance):
    model = "gemini-test"
    wire = gemini_wire
    path = ":generateContent"
