"""``mesh llm-stub``."""

from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import plain_words


def llm_stub(
    host: Annotated[str, typer.Option(help="Listen here.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen here; 0 picks a free port.")] = 8081,
    script: Annotated[Path | None, typer.Option(help="YAML rules; none: it echoes.")] = None,
    latency: Annotated[float, typer.Option(min=0, max=3600, help="Seconds before each answer.")] = 0.0,
) -> None:
    """Serve a scripted model to test against, without keys.

    It speaks the OpenAI, Anthropic and Gemini formats, plain and streaming. Point a provider's
    base URL at it, such as OPENAI_BASE_URL=http://127.0.0.1:8081/v1

    Example: mesh llm-stub --port 8081 --latency 0.05
    """
    with plain_words():
        from mesh.servers.llm_stub import serve

        serve(host, port, script, latency)
