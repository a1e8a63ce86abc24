"""The command line. It checks, says what is wrong in one line each, and hands over.

Exit codes: 0 fine, 1 this machine lacks something, 2 the config (or the command) is wrong,
130 interrupted. Imports are made where they are used: ``mesh --help`` answers at once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mesh.config import Config
    from mesh.mcp.port import Tool

DEFAULT_CONFIG = Path("config/agent.yaml")
MACHINE, WRONG, INTERRUPTED = 1, 2, 130
_NODES_SHOWN = 40

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # it would print local variables: secrets among them
    help="Durable agents on Ray that stop for a person before they act.\n\n"
    "Start with: mesh up config/agent.yaml",
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The agent's YAML file.", show_default=True)
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mesh {version('mesh')}")
        raise typer.Exit


@app.callback()
def mesh(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """The options that stand before every command."""


@app.command()
def up(
    config: ConfigFile = DEFAULT_CONFIG,
    host: Annotated[str | None, typer.Option(help="Listen here instead of the config's host.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Instead of the config's port.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Keep conversations here instead.")] = None,
) -> None:
    """Start the agent and serve it until Ctrl-C.

    Starts a local Ray, or joins the cluster that RAY_ADDRESS names.

    Example: mesh up config/agent.yaml --host 127.0.0.1 --port 9000
    """
    with _plain_words():
        from rich.console import Console

        from mesh.preflight import obstacles

        chosen = {"host": host, "port": port, "data_dir": data_dir}
        loaded = _runnable(config).model_copy(
            update={key: to for key, to in chosen.items() if to is not None}
        )
        if found := obstacles(loaded, os.environ):
            _leave(found, MACHINE)
        _runtime()(loaded, Console())


@app.command()
def check(config: ConfigFile) -> None:
    """Validate a config without starting anything.

    Every problem is printed as file:line: key: what is wrong; expected what.

    Example: mesh check config/agent.yaml
    """
    with _plain_words():
        from mesh.tree.plan import hints, tree_of

        loaded = _runnable(config)
        servers = ", ".join(server.name for server in loaded.servers) or "none"
        spots = list(tree_of(loaded).walk())
        for hint in hints(loaded):
            typer.echo(f"warning: {hint}", err=True)
        typer.echo(f"{config}: fine")
        for label, value in (
            ("agent", loaded.name),
            ("models", ", ".join(sorted({model for _, model in loaded.models()}))),
            ("MCP servers", servers),
            ("digest", loaded.digest),
        ):
            typer.echo(f"  {label:<12} {value}")
        typer.echo(f"  {'nodes':<12} {len(spots)}")
        for spot in spots[:_NODES_SHOWN]:
            typer.echo(f"  {'  ' * spot.path.count('.')}- {spot.node.name} ({spot.node.type})")
        if len(spots) > _NODES_SHOWN:
            typer.echo(f"  … and {len(spots) - _NODES_SHOWN} more")


@app.command()
def tools(
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Start the MCP servers of a config and list their tools.

    "approval" says whether a person is asked before each call.

    Example: mesh tools config/agent.yaml --json
    """
    with _plain_words():
        import asyncio
        import logging

        from mesh.preflight import missing_programs

        logging.getLogger("mesh").addHandler(logging.NullHandler())  # what matters comes as an error
        loaded = _loaded(config)
        if found := [*missing_programs(loaded)]:
            _leave(found, MACHINE)
        listed = asyncio.run(_listed(loaded))
        if as_json:
            _print_json(listed)
        else:
            from rich.console import Console

            Console().print(_table(listed))


@app.command("llm-stub")
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
    with _plain_words():
        from mesh.servers.llm_stub import serve

        serve(host, port, script, latency)


def main() -> None:
    """The console script ``mesh``."""
    app()


def _loaded(path: Path) -> "Config":
    from mesh.config import load

    return load(path, os.environ)


def _runnable(path: Path) -> "Config":
    from mesh.config import unsupported
    from mesh.errors import ConfigError

    config = _loaded(path)
    if later := unsupported(config):
        raise ConfigError(later)
    return config


def _runtime() -> "Callable[[Config, Console], None]":
    """What runs a config. It is found by its entry point: nothing here imports it by name."""
    from importlib.metadata import entry_points

    found = [*entry_points(group="mesh.runtime", name="ray")]
    if not found:
        _leave(["no runtime is installed; run make setup"], MACHINE)
    start: Callable[[Config, Console], None] = found[0].load()
    return start


@contextmanager
def _plain_words() -> Iterator[None]:
    """Errors for people become lines and an exit code; anything else is a bug and keeps its traceback."""
    from mesh.errors import ConfigError, MeshError

    try:
        yield
    except ConfigError as error:
        _leave(error.problems, WRONG)
    except MeshError as error:
        _leave([str(error)], MACHINE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _leave(problems: Sequence[str], code: int) -> NoReturn:
    for problem in problems:
        typer.echo(f"mesh: {problem}", err=True)
    raise typer.Exit(code)


async def _listed(config: "Config") -> "list[Tool]":
    from mesh.mcp.session import McpSession
    from mesh.mcp.toolbox import Toolbox

    bound = max((server.start_timeout_s + server.timeout_s for server in config.servers), default=1.0)
    toolbox = Toolbox([McpSession(server) for server in config.servers], start_timeout_s=bound)
    try:
        await toolbox.start()
        return sorted(toolbox.tools.values(), key=lambda tool: (tool.server, tool.name))
    finally:
        await toolbox.close()


def _table(listed: "Sequence[Tool]") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table("tool", "server", "approval", "hints", "description")
    for tool in listed:
        hints = [name for name in ("destructive", "repeatable") if getattr(tool, name)]
        asks = "yes" if tool.destructive else "no"
        table.add_row(tool.name, tool.server, asks, ", ".join(hints) or "-", escape(tool.description))
    return table


def _print_json(listed: "Sequence[Tool]") -> None:
    import json

    rows = [
        {
            "name": tool.name,
            "server": tool.server,
            "destructiveHint": tool.destructive,
            "repeatable": tool.repeatable,
            "description": tool.description,
            "inputSchema": tool.input_schema,
        }
        for tool in listed
    ]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
