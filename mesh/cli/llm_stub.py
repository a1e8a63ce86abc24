"""``mesh llm-stub``."""

from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import errors_as_lines


def llm_stub(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 8081,
    script: Annotated[
        Path | None, typer.Option(help="A YAML file of rules. Without it the stub echoes.")
    ] = None,
    latency: Annotated[float, typer.Option(min=0, max=3600, help="Seconds before each answer.")] = 0.0,
) -> None:
    """Serve a scripted model for tests, without keys.

    It speaks the OpenAI, Anthropic and Gemini formats, plain and streaming. Set the base URL of a
    provider to it, such as OPENAI_BASE_URL=http://127.0.0.1:8081/v1

    Example: mesh llm-stub --port 8081 --latency 0.05
    """
    with errors_as_lines():
        from mesh.servers.llm_stub import serve

        serve(host, port, script, latency)
