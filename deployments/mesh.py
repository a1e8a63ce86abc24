"""What one ``mesh up`` starts and stops.

start or join Ray ─► keepers, MCP sessions, nodes of each agent ─► Serve ingresses ─► ready ─► wait ─► stop
"""

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from deployments import cluster, edge, haproxy
from deployments.blueprint import demand
from deployments.cluster import CannotStart, cause_of
from deployments.deployed_agent import DeployedAgent
from mesh.config.model import Config
from mesh.runtime.logs import fields

_log = logging.getLogger("mesh.driver")
_START_WITHIN_S = 120.0
_START_EACH_S = 3.0
_OWN_EDGE_WITHIN_S = 10.0
_LOOK_EVERY_S = 2.0
_POLL_S = 0.2
_CLOSE_WITHIN_S = 4.0
_GONE_WITHIN_S = 0.5


class Mesh:
    """The agents, with the Ray and the HTTP edge that they share."""

    def __init__(
        self,
        configs: Sequence[Config],
        console: Console,
        *,
        web: str = "",
        with_dashboard: bool = True,
        again: bool,
    ) -> None:
        """``web`` is the URL of the web chat, if it is served. ``with_dashboard``: a Ray of our own has its
        dashboard. ``again`` says that this is a restart, which prints less."""
        self._console = console
        self._web = web
        self._with_dashboard = with_dashboard
        self._is_again = again
        self.is_ours = not os.environ.get("RAY_ADDRESS")
        self.logs = ""
        """The directory of Ray's logs on this machine, once Ray runs."""
        self._is_alone = len(configs) == 1
        self._agents = [
            DeployedAgent(config, alone=self._is_alone, one_machine=self.is_ours) for config in configs
        ]
        self._host, self._port = configs[0].host, configs[0].port
        self.reached = self._host
        """The host whose HTTP edge this machine uses. Another machine's where this one has none."""
        self._serve_was_used = False
        self._started_serve = False
        self._dashboard = ""
        self._asked: Mapping[str, float] = {}
        self._head_was_away = False
        self._ready: set[str] = set()
        """The names of actors that have said that they are ready."""

    def start(self, stop: threading.Event, progressed: Callable[[], None]) -> None:
        """Returns when all agents answer, or soon after ``stop`` is set. Calls ``progressed`` after each
        step."""
        begun = time.monotonic()
        steps = (
            self._start_ray,
            self._make_actors,
            self._start_serve,
            partial(self._await_actors, stop),
            self._start_edge,
            partial(self._await_answer, stop),
        )
        for step in steps:
            if not stop.is_set():
                step()
                progressed()
        if not stop.is_set():
            self._print_ready(time.monotonic() - begun)

    def why_unreachable(self) -> str:
        """Returns why the cluster that was joined does not answer. It is empty while it does, and for a Ray
        of our own, whose daemons the supervisor watches."""
        why = "" if self.is_ours else cluster.why_unreachable()
        self._head_was_away = self._head_was_away or bool(why)
        return why

    @property
    def may_change(self) -> bool:
        """Whether there is anything to `follow`."""
        return not self.is_ours or any(agent.is_scaled for agent in self._agents)

    def follow(self) -> None:
        """Starts what machines that have joined the cluster are to have, and the keepers that the turns under
        way need; ends what is not needed any more. Raises what Ray does when it cannot."""
        before = self._actors.keys()
        try:
            for agent in self._agents:
                agent.follow()
        finally:
            for name in self._actors.keys() - before:
                _log.info("event=actor_added actor=%s", name.replace(" ", "_"))
                self._ready.add(name)  # nobody waits for it, but it is closed in the end

    def stop(self) -> None:
        """Stops what was started on Ray, and Ray itself if it is ours."""
        import ray

        if not ray.is_initialized():
            return
        try:
            if self._head_was_away:
                self._join_again()
            replaced = {agent.name for agent in self._agents if not self.is_ours and agent.forget_shared()}
            self._kill_unready()
            leaves_serve = self._serve_was_used and not self.is_ours
            # A newer deployment has replaced the application of its agent: that one is not ours.
            ours = [name for name, _ in self._applications() if name not in replaced]
            if leaves_serve:
                cluster.leave_serve(ours, within_s=_CLOSE_WITHIN_S)
            closing = [self._actors[name].close.remote() for name in self._closable & self._ready]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_WITHIN_S)
            for actor in self._actors.values():
                ray.kill(actor)
            if leaves_serve and self._started_serve:
                cluster.shut_down_serve(ours)  # last, as it may take long
        except (ray.exceptions.RayError, CannotStart) as problem:
            # The signal that stops us may have reached Ray's processes too.
            self._console.print(
                f"[dim]mesh:[/] Ray is gone already ({type(problem).__name__})", highlight=False
            )
        ray.shutdown()

    def _join_again(self) -> None:
        """A driver (ray 2.60) hears no more of actors after the head was started again, and would wait for
        them where they were before. Actors do hear of each other."""
        import ray

        ray.shutdown()
        cluster.join(os.environ["RAY_ADDRESS"])
        for agent in self._agents:
            agent.find_actors_again()

    def _kill_unready(self) -> None:
        """There is no time to wait for actors that do not answer. Nodes go first: one that waits for a
        session would make it anew."""
        import ray

        unready = {name: actor for name, actor in self._actors.items() if name not in self._ready}
        for names in (unready.keys() - self._closable, unready.keys() & self._closable):
            for name in names:
                ray.kill(unready[name])
            gone = [unready[name].ready.remote() for name in names]  # these fail as soon as they are
            if gone:
                ray.wait(gone, num_returns=len(gone), timeout=_GONE_WITHIN_S)

    def _start_ray(self) -> None:
        self._print_step("starting Ray" if self.is_ours else f"joining Ray at {os.environ['RAY_ADDRESS']}")
        if self.is_ours:
            joined = cluster.start_local(with_dashboard=self._with_dashboard)
        else:
            joined = cluster.join(os.environ["RAY_ADDRESS"])
        self._dashboard, self.logs = joined.dashboard, joined.logs
        if warning := joined.warning:
            self._console.print(f"[yellow]mesh: warning:[/] {warning}", highlight=False, soft_wrap=True)

    def _make_actors(self) -> None:
        """Creates all actors without waiting for them: they start in parallel with each other and with
        Serve."""
        asked: Counter[str] = Counter()
        for agent in self._agents:
            asked.update(demand(agent.blueprint, agent.config))
        self._asked = asked
        if missing := self._missing:
            if self.is_ours:
                raise CannotStart(
                    f"this machine has too little for the resources of nodes and servers: {missing}"
                )
            self._print_step(f"the cluster has too little of {missing}: waiting for machines that join")
        for agent in self._agents:
            agent.make_actors()

    @property
    def _missing(self) -> str:
        """The resources that nodes and servers ask for and the cluster, as it is now, does not have."""
        return ", ".join(cluster.missing_resources(self._asked))

    def _start_serve(self) -> None:
        self._print_step(f"starting {len(self._actors)} actors and the HTTP edge")
        self._serve_was_used = True
        self._started_serve = not cluster.has_serve()
        with _edge_errors(self.logs):
            cluster.start_serve(self._serve_host, self._port)

    @property
    def _serve_host(self) -> str:
        """HAProxy gets its host from us, and Serve only the host of what is behind HAProxy."""
        behind_haproxy = self.is_ours and edge.has_haproxy(os.environ)
        return haproxy.HERE if behind_haproxy else self._host

    def _await_actors(self, stop: threading.Event) -> None:
        within_s = _START_WITHIN_S + _START_EACH_S * len(self._actors)
        deadline = time.monotonic() + within_s
        # Nodes last: each waits only so long for its sessions, which may wait for a machine.
        first = self._closable
        for names in (first, self._actors.keys() - first):
            if not self._await_ready([name for name in self._actors if name in names], deadline, stop):
                missing = self._missing
                why = f"the cluster has too little of {missing}" if missing else _logs(self.logs)
                unready = ", ".join(name for name in self._actors if name not in self._ready)
                raise CannotStart(f"not up after {within_s:g} s: {unready}; {why}")

    def _await_ready(self, names: Sequence[str], deadline: float, stop: threading.Event) -> bool:
        """Waits until these actors are ready, or somebody stops us. False: they are not in time."""
        import ray

        waiting = {self._actors[name].ready.remote(): name for name in names}
        while waiting and not stop.is_set():
            done, _ = ray.wait(list(waiting), timeout=_POLL_S)
            if not done and time.monotonic() < deadline:
                continue
            if not done:
                return False
            name = waiting.pop(done[0])
            try:
                ray.get(done[0])
            except ray.exceptions.RayError as problem:
                raise CannotStart(f"{name} cannot start: {cause_of(problem)}") from problem
            self._ready.add(name)
            self._print_step(f"actor {len(self._ready)} of {len(self._actors)}: {name}")
            lacked = [each for agent in self._agents for each in agent.lacked(self._ready)]
            waiting = {ref: name for ref, name in waiting.items() if name in lacked}
        return True

    def _start_edge(self) -> None:
        from ray import serve

        self._print_step(
            "starting the gateway" if self._is_alone else f"starting {len(self._agents)} gateways"
        )
        from ray.serve.api import RunTarget

        from deployments import agent_index, app
        from mesh.http.landing_page import Links

        dashboard = f"http://{self._dashboard}" if self._dashboard else ""
        # The web chat serves only the first agent.
        chats = [self._web, *("" for _ in self._agents[1:])]
        links = [Links(chat, dashboard) for chat in chats]
        blueprints = [agent.blueprint for agent in self._agents]
        if self._share_gateway:
            built = [agent_index.build_shared(blueprints, links)]
        else:
            built = [app.build(*each) for each in zip(blueprints, links, strict=True)]
            if not self._is_alone:
                built.append(agent_index.build(blueprints))
        with _edge_errors(self.logs):
            serve.run_many([RunTarget(a, *to) for a, to in zip(built, self._applications(), strict=True)])

    def _applications(self) -> list[tuple[str, str]]:
        """Returns the name of each Serve application, and the path below which it is served."""
        from deployments import agent_index

        found = [] if self._share_gateway else [(agent.name, agent.path) for agent in self._agents]
        if not self._is_alone:
            found.append((agent_index.name_of([agent.blueprint for agent in self._agents]), "/"))
        return found

    @property
    def _share_gateway(self) -> bool:
        """Whether one gateway serves all agents. Not on a cluster that was joined: there, each of them may be
        replaced by another ``mesh up``, or ``mesh deploy``."""
        are_light = all(agent.config.cluster.isolation == "shared" for agent in self._agents)
        return self.is_ours and not self._is_alone and are_light

    def _await_answer(self, stop: threading.Event) -> None:
        """Waits until the edge answers: Serve reports that it runs a moment before its edge routes to it."""
        import httpx2

        begun = time.monotonic()
        look_at = begun + _OWN_EDGE_WITHIN_S
        waiting = list(dict.fromkeys(["/ready", *(f"{agent.url('')}/ready" for agent in self._agents)]))
        while waiting and time.monotonic() < begun + _START_WITHIN_S and not stop.is_set():
            try:
                if httpx2.get(f"{self._edge}{waiting[0]}", timeout=5).status_code == 200:
                    waiting.pop(0)
                    continue
            except httpx2.TransportError:
                if self._may_use_another_edge and time.monotonic() > look_at:
                    look_at = time.monotonic() + _LOOK_EVERY_S
                    self.reached = self._other_edge()
            time.sleep(0.05)
        if waiting and not stop.is_set():
            raise CannotStart(
                f"{self._edge}{waiting[0]} does not answer after {_START_WITHIN_S:g} s; {_logs(self.logs)}"
            )

    @property
    def _may_use_another_edge(self) -> bool:
        return not self.is_ours and edge.is_open(self._host)

    def _other_edge(self) -> str:
        """The host whose edge is to be used now, as far as Serve says one."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            return cluster.other_edge() or self._host
        except (RayError, RayServeException, RuntimeError) as problem:
            _log.warning("event=edges_unknown %s", fields(why=problem))
            return self.reached

    @property
    def _actors(self) -> dict[str, Any]:
        """All actors of all agents, by the names that people see."""
        return {name: actor for agent in self._agents for name, actor in list(agent.actors.items())}

    @property
    def _closable(self) -> set[str]:
        return {name for agent in self._agents for name in agent.closable}

    @property
    def url(self) -> str:
        """The URL of the first agent."""
        return self._agents[0].url(self._edge)

    @property
    def _edge(self) -> str:
        return edge.url_of(self.reached, self._port)

    def _print_ready(self, seconds: float) -> None:
        if self._is_again:
            self._console.print(f"[dim]mesh:[/] ready again after {seconds:.1f} s", highlight=False)
            return
        say = self._console.print
        names = ", ".join(f"[bold]{agent.name}[/]" for agent in self._agents)
        agents = "agent" if self._is_alone else f"{len(self._agents)} agents:"
        say(f"\n[bold green]ready[/] after {seconds:.1f} s: {agents} {names}", highlight=False)
        for name, value in self._addresses():
            say(f"  {name:14} {value}", highlight=False, soft_wrap=True)
        if self.is_ours and self._dashboard:
            ray = quote(str(Path(sys.executable).with_name("ray")))
            say(f"  {'':14} (it asks for a token: {ray} get-auth-token)", highlight=False, soft_wrap=True)
        if edge.is_open(self._host):
            say(f"  {'':14} open on every interface; --host 127.0.0.1 closes it", highlight=False)
        say("\ntry it:\n", highlight=False)
        key = ' -H "X-API-Key: $MESH_KEY"' if self._agents[0].config.auth else ""
        command = f"""curl -s {self.url}/conversations{key} -d '{{"message": "list all resources"}}'"""
        say(f"  {command}\n", highlight=False, soft_wrap=True)
        say("Ctrl-C stops everything.", style="dim", highlight=False)

    def _addresses(self) -> Iterator[tuple[str, str]]:
        if self._web:
            yield "web chat", self._web if self._is_alone else f"{self._web} (with {self._agents[0].name})"
        if self._is_alone:
            yield from (("API", self._edge), ("docs", f"{self._edge}/docs"))
        else:
            for agent in self._agents:
                yield agent.name, agent.url(self._edge)
                yield "", f"keeps conversations in {agent.config.data_dir}"
            yield "docs", "/docs below each"
        if self._dashboard:
            yield "Ray dashboard", f"http://{self._dashboard}"

    def _print_step(self, text: str) -> None:
        self._console.print(f"[dim]mesh:[/] {text} …", highlight=False, soft_wrap=True)


@contextmanager
def _edge_errors(logs: str) -> Iterator[None]:
    """Turns what Serve raises into a line for people. ``logs`` is the directory of Ray's logs."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        yield
    except (RuntimeError, TimeoutError, RayError, RayServeException) as problem:
        raise CannotStart(f"the HTTP edge cannot start: {cause_of(problem)}; {_logs(logs)}") from problem


def _logs(folder: str) -> str:
    return f"the actors' logs are in {folder or '/tmp/ray/session_latest/logs'}"
