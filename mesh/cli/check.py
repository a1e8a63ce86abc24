"""``mesh check``."""

import typer

from mesh.cli.shared import ConfigFile, plain_words, runnable

_NODES_SHOWN = 40


def check(config: ConfigFile) -> None:
    """Validate a config without starting anything.

    Every problem is printed as file:line: key: what is wrong; expected what.

    Example: mesh check config/agent.yaml
    """
    with plain_words():
        from mesh.tree.plan import hints, tree_of

        loaded = runnable(config)
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
