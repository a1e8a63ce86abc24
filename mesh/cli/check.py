"""``mesh check``."""

from typing import Annotated

import typer

from mesh.cli.shared import ConfigArgument, errors_as_lines, loaded

_NODES_SHOWN = 40


def check(
    config: ConfigArgument,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the config, which is that of a Python file, too, as YAML.")
    ] = False,
) -> None:
    """Validate a config without starting anything but its Python files, which are run to see what they offer.

    Each problem is printed as file:line: key: what is wrong; what is expected.

    Example: mesh check config/agent.yaml
    """
    with errors_as_lines():
        from mesh.access.exposure import warnings
        from mesh.config.policy_examples import example_problems, never_deciding
        from mesh.core.errors import ConfigError
        from mesh.tree.machine_needs import refused_python
        from mesh.tree.plan import all_nodes, likely_mistakes, other_agents

        agent = loaded(config)
        if wrong := [*example_problems(agent), *refused_python(agent)]:
            raise ConfigError(wrong)
        servers = ", ".join(server.name for server in agent.servers) or "none"
        agents = [other.name for other in other_agents(agent)]
        validating = agent.validating_agents
        called = [f"{name} (checks)" if name in validating else name for name in agent.callable_agents]
        planned_nodes = list(all_nodes(agent))
        for hint in [*warnings(agent), *never_deciding(agent), *likely_mistakes(agent)]:
            typer.echo(f"warning: {hint}", err=True)
        if as_yaml:
            typer.echo(agent.source, nl=False)
            return
        typer.echo(f"{config}: fine")
        for label, value in (
            ("agent", agent.name),
            ("models", ", ".join(sorted({model for _, model in agent.models()}))),
            ("MCP servers", servers),
            ("agents", ", ".join(called) or "none"),
            ("A2A agents", ", ".join(agents) or "none"),
            ("digest", agent.digest),
        ):
            typer.echo(f"  {label:<12} {value}")
        typer.echo(f"  {'nodes':<12} {len(planned_nodes)}")
        for planned in planned_nodes[:_NODES_SHOWN]:
            typer.echo(f"  {'  ' * planned.path.count('.')}- {planned.node.name} ({planned.node.type})")
        if len(planned_nodes) > _NODES_SHOWN:
            typer.echo(f"  … and {len(planned_nodes) - _NODES_SHOWN} more")
