"""``mesh deploy``, ``promote``, ``down``, ``leave`` and ``serve-config``: agents that stay on a cluster.

    deploy        config ─► Serve application (gateways, caretaker) ─► waits until it is in force
    promote       name ─► the deployment that stands by takes the shards
    serve_config  config ─► the same application as YAML, for ``serve deploy`` and a RayService
    down          name ─► the application and all actors of the agent end
    leave         this machine ─► its keepers give their shards to others

All but `serve_config` join the cluster that ``RAY_ADDRESS`` names.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from rich.console import Console

from deployments import cluster, edge
from deployments.cluster import CannotStart, cause_of
from mesh.config.model import Config
from mesh.config.several_agents import path_of
from mesh.core.errors import MeshError

if TYPE_CHECKING:
    from deployments.caretaker import DeploymentProgress

_ASK_EVERY_S = 0.5
_ANSWERS_WITHIN_S = 10.0
_DOWN_WITHIN_S = 120.0
_NAMED = 3
"""So many of the actors that are not ready are named."""


class NotInForce(MeshError):
    """A deployment did not come into force in time. It may still do."""


def deploy(config: Config, console: Console, *others: Config, path: str, within_s: float) -> None:
    """Deploys agents to the cluster that ``RAY_ADDRESS`` names, or what has changed of them, and returns when
    they are in force. ``path`` is where a single agent is served; empty for the usual one. Raises
    `MeshError`."""
    configs = (config, *others)
    paths = [path or path_of(each.name, alone=not others) for each in configs]
    with _joined(console):
        from ray import serve
        from ray.serve.api import RunTarget

        from deployments.caretaker import AgentDescription, described

        if not cluster.has_serve():
            _say(console, f"starting the HTTP edge on port {config.port}")
            cluster.start_serve(config.host, config.port)
        for each in configs:
            _refuse_foreign(each.name)
        serve.run_many(
            [RunTarget(_application(each), each.name, at) for each, at in zip(configs, paths, strict=True)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        deadline = time.monotonic() + within_s
        for each, at in zip(configs, paths, strict=True):
            key = AgentDescription(**described(each)).key
            progress = _settled(each.name, key, console, deadline, within_s)
            names = f"[bold]{each.name}[/], version {each.digest}"
            if progress.is_in_force:
                said = (
                    f"[bold green]deployed[/] {names}, at {at} of the cluster's HTTP edge; it stays until: "
                    f"mesh down {each.name}"
                )
            else:
                said = (
                    f"[bold]ready[/]: {names}, stands by (promote: manual); what was deployed before goes on "
                    f"until: mesh promote {each.name}"
                )
            console.print(said, highlight=False, soft_wrap=True)


def promote(names: Sequence[str], console: Console, *, within_s: float) -> None:
    """Has deployments that stand by take the conversations over, and returns when they have. Raises
    `MeshError`."""
    with _joined(console):
        deadline = time.monotonic() + within_s
        for name in names:
            _refuse_foreign(name)
            progress = _asked_to(name, "promote")
            if progress is None:
                raise MeshError(f"no caretaker of an agent {name} answers here; is it deployed?")
            if progress.is_in_force:
                console.print(
                    f"nothing of {name} stands by; version {progress.digest} is in force already",
                    highlight=False,
                )
                continue
            if not progress.stands_by:
                raise MeshError(f"{name} cannot be promoted yet: it waits for {_waits_for(progress)}")
            progress = _settled(name, progress.deployment, console, deadline, within_s)
            if not progress.is_in_force:  # its caretaker has died before it was done, and knows nothing of it
                raise NotInForce(
                    f"{name} stands by again, as its caretaker was started anew; promote it again"
                )
            console.print(
                f"[bold green]in force[/]: [bold]{name}[/], version {progress.digest}", highlight=False
            )


def down(names: Sequence[str], console: Console) -> None:
    """Takes agents down, with all their actors. What they keep in their stores stays. Raises `MeshError` if
    there is nothing of one of them."""
    with _joined(console):
        from ray import serve

        from deployments import addresses
        from deployments.deployed_agent import end_all

        for name in names:
            applications = serve.status().applications if cluster.has_serve() else {}
            is_deployed = name in applications
            if not is_deployed and not any(each.is_deployed for each in addresses.actors_of(name)):
                raise MeshError(
                    f"no agent {name} is deployed here; there is {', '.join(applications) or 'none'}"
                )
            _refuse_foreign(name)
            _say(console, f"taking {name} down")
            if is_deployed:
                serve.delete(name, _blocking=False)
                _await_deleted(name)
            end_all(name)  # what a caretaker has left that died
            console.print(f"[bold]{name}[/] is down; its conversations stay in its store", highlight=False)


def leave(console: Console, *, within_s: float) -> None:
    """Has the keepers on this machine give their shards to those on others: the machine is about to go. They
    stay without any until then, so that nobody starts others in their place. Raises `MeshError` if one is not
    done in time; others take its shards all the same, when its lease has ended."""
    with _joined(console):
        import ray

        from deployments import addresses

        here = ray.get_runtime_context().get_node_id()
        leaving = {}
        for each in addresses.all_keepers():
            with suppress(ValueError):  # it has ended since
                handle = each.handle()
                if addresses.told_by(handle, "machine") == here:
                    leaving[handle.leave.remote()] = each.name
        _say(console, f"{len(leaving)} keepers of this machine give their shards away")
        done, late = ray.wait([*leaving], num_returns=len(leaving), timeout=within_s) if leaving else ([], [])
        problems = [f"{leaving[each]}: not done after {within_s:g} s" for each in late]
        for ended in done:
            try:
                ray.get(ended)
                console.print(f"{leaving[ended]} has left", highlight=False)
            except ray.exceptions.RayError as problem:
                problems.append(f"{leaving[ended]}: {cause_of(problem)}")
        if problems:
            raise MeshError(f"{'; '.join(problems)}. Others take the conversations when its lease ends")


def serve_config(config: Config, *others: Config, host: str, port: int, mounted: str) -> str:
    """The config of Serve for agents, as YAML. ``mounted``: the folder of the agents' files on the machines
    of the cluster, instead of their texts."""
    configs = (config, *others)
    content = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
        "applications": [
            _as_application(each, path_of(each.name, alone=not others), mounted) for each in configs
        ],
    }
    return yaml.dump(content, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=110)


def _as_application(config: Config, path: str, mounted: str) -> dict[str, Any]:
    from deployments.app import gateway_options
    from deployments.caretaker import described

    description = described(config)
    if mounted:
        description = {"file": str(Path(mounted) / Path(config.origin).name)}
        if "data_dir" in config.model_fields_set:
            description["data_dir"] = str(config.data_dir)
    return {
        "name": config.name,
        "route_prefix": path,
        "import_path": "deployments.app:agent",
        "deployments": [
            {"name": "Caretaker", "user_config": description},
            {"name": "Gateway", **gateway_options(config)},
        ],
    }


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _written)


def _refuse_foreign(name: str) -> None:
    """Raises `CannotStart` if the application of this name is not one that was deployed here."""
    from ray import serve

    found = serve.status().applications.get(name) if cluster.has_serve() else None
    if found is not None and found.deployments and "Caretaker" not in found.deployments:
        raise CannotStart(
            f"the cluster has an application {name} that mesh deploy has not made: it belongs to a `mesh up` "
            "that runs, or to somebody else"
        )


def _application(config: Config) -> Any:
    """The application of an agent. Its deployments have the version of this package: with another agent,
    Serve tells the caretaker that runs, and starts nothing anew. No public option says so (ray 2.60;
    `tests/deployments/test_patches.py` fails when that changes)."""
    from deployments import app, caretaker
    from deployments.app import gateway_options
    from mesh.http.landing_page import Links

    code: dict[str, Any] = {"version": version("mesh"), "_internal": True}
    gateway: Any = app.Gateway
    keeps: Any = caretaker.Caretaker
    kept = keeps.options(user_config=caretaker.described(config), **code).bind()
    return gateway.options(**gateway_options(config), **code).bind(kept, Links())


def _settled(name: str, key: str, console: Console, deadline: float, within_s: float) -> "DeploymentProgress":
    """Returns when a deployment is in force, or stands by, and says meanwhile what it waits for."""
    from ray import serve

    said = ""
    while True:
        state = serve.status().applications[name]
        if state.status == "DEPLOY_FAILED":
            raise CannotStart(f"{name} cannot be deployed: {_last_line(state.message)}")
        progress = _asked_to(name, "progress")
        is_ours = progress is not None and progress.deployment == key
        if progress and is_ours and progress.is_refused:
            raise CannotStart(
                f"{name} cannot be deployed: {progress.problem}; what was deployed before goes on"
            )
        is_settled = progress is not None and (progress.is_in_force or progress.stands_by)
        if progress and is_ours and is_settled and state.status == "RUNNING":
            return progress
        now = _waits_for(progress) if progress and is_ours else "its caretaker"
        if now != said:
            _say(console, f"{name} waits for {now}")
            said = now
        if time.monotonic() > deadline:
            raise NotInForce(
                f"{name} is not in force after {within_s:g} s: it waits for {now}. It comes into "
                "force once that is there; what was deployed before goes on until then"
            )
        time.sleep(_ASK_EVERY_S)


def _waits_for(progress: "DeploymentProgress") -> str:
    first, more = progress.waiting[:_NAMED], len(progress.waiting) - _NAMED
    names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return (names or "its keepers") + (f" ({progress.problem})" if progress.problem else "")


def _asked_to(application: str, method: Literal["progress", "promote"]) -> "DeploymentProgress | None":
    """What the caretaker answers; None while there is none."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        caretaker: Any = serve.get_deployment_handle("Caretaker", app_name=application)
    except KeyError:  # Serve (ray 2.60) has not come to it yet
        return None
    try:
        call = getattr(caretaker, method)
        found: DeploymentProgress = call.remote().result(timeout_s=_ANSWERS_WITHIN_S)
        return found
    except (RayError, RayServeException, TimeoutError):
        return None


def _await_deleted(name: str) -> None:
    from ray import serve

    deadline = time.monotonic() + _DOWN_WITHIN_S
    while name in serve.status().applications:
        if time.monotonic() > deadline:
            raise MeshError(f"Serve has not deleted {name} after {_DOWN_WITHIN_S:g} s; try again")
        time.sleep(_ASK_EVERY_S)


@contextmanager
def _joined(console: Console) -> Iterator[None]:
    """Uses the cluster that ``RAY_ADDRESS`` names. Raises `CannotStart`."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise CannotStart(
            "no cluster: set RAY_ADDRESS to that of a running Ray, such as one that `ray start --head` says; "
            "`mesh up` needs none"
        )
    edge.prepare_to_join(os.environ, Path.home())
    _say(console, f"joining Ray at {address}")
    if warning := cluster.join(address).warning:
        console.print(f"[yellow]mesh: warning:[/] {warning}", highlight=False, soft_wrap=True)
    import ray
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        yield
    except (RuntimeError, TimeoutError, RayError, RayServeException) as problem:
        raise CannotStart(f"Ray Serve at {address}: {cause_of(problem)}") from problem
    finally:
        ray.shutdown()


def _last_line(message: str) -> str:
    """What an error came to, of a traceback that Serve has made a text."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "Serve does not say why"


def _say(console: Console, text: str) -> None:
    console.print(f"[dim]mesh:[/] {text} …", highlight=False, soft_wrap=True)
