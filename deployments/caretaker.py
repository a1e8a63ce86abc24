"""Who keeps the actors of an agent that was deployed to a cluster: a Serve deployment beside its gateways.

    described ─► sessions and nodes ─► ready ─► keepers ─► the shards are handed over ─► older ones leave
                                         └ ``promote: manual``: stands by until ``mesh promote``

Serve gives it the agent (`AgentDescription`), and another one in its place without a restart. The keepers
come last, because they take the shards: an agent that never becomes ready changes nothing for those who use
the one before. It may die at any moment: the actors stay, and the next caretaker finds them by their names.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import RayServeException

from deployments.blueprint import Blueprint
from deployments.cluster import A_LITTLE_CPU, cause_of
from deployments.deployed_agent import DeployedAgent, blueprint_in_force, end_all
from mesh.config.agent_file import load
from mesh.config.files import FileText
from mesh.config.model import Auth, Config, parse
from mesh.config.workspace_variable import with_workspace
from mesh.core.errors import ConfigError, MeshError
from mesh.core.mesh_state import Rollout
from mesh.disk.holder import Holder, held
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields, set_up

_FOLLOW_EVERY_S = 2.0
_ASKED_FOR_S = 20.0
"""How long a gateway that asks for a newer blueprint waits at most for the answer that there is none."""
_TRIED_AGAIN = Backoff(first_s=1.0, longest_s=10.0)
_END_WITHIN_S = 60.0
_MOST_SAID = 1000
_log = logging.getLogger("mesh.caretaker")
T = TypeVar("T")


@dataclass(frozen=True)
class AgentDescription:
    """An agent as it stands in the config of a Serve application: plain data, that people can read.

    Either ``file`` is its file on the machines of the cluster, or ``config`` its text, from the file
    ``origin``, with those of the ``files`` that it names. ``${VAR}`` is not replaced: each machine has its
    own environment. Relative paths are below the working directory of the caretaker.
    """

    file: str = ""
    config: str = ""
    origin: str = ""
    files: Mapping[str, Mapping[str, str]] | None = None
    data_dir: str = ""
    workspace: str = ""
    keys_file: str = ""

    @property
    def key(self) -> str:
        """The same for the same agent, and another one for any other. A file counts with its content."""
        text = Path(self.file).read_text() if self.file else ""
        return hashlib.sha256(json.dumps([_plain(self), text], sort_keys=True).encode()).hexdigest()[:8]

    def read(self) -> Config:
        """The config. Raises `ConfigError`."""
        env = with_workspace(os.environ, Path(self.workspace) if self.workspace else None)
        if self.file:
            config = load(Path(self.file), env)
        else:
            files = {name: FileText(**file) for name, file in (self.files or {}).items()}
            config = parse(self.config, self.origin, env, files)
        chosen: dict[str, Any] = {}
        if self.data_dir:
            chosen["data_dir"] = Path(self.data_dir)
        if self.keys_file:
            chosen["auth"] = Auth(keys_file=Path(self.keys_file))
        return config.model_copy(update=chosen)


def described(config: Config) -> dict[str, Any]:
    """The description of a config, as plain data."""
    return _plain(
        AgentDescription(
            config=config.source,
            origin=config.origin,
            files={name: file._asdict() for name, file in config.files.items()},
            data_dir=str(config.data_dir.absolute()),
            workspace=str(config.workspace or ""),
            keys_file=str(config.auth.keys_file.absolute()) if config.auth else "",
        )
    )


def _plain(description: AgentDescription) -> dict[str, Any]:
    return {name: value for name, value in vars(description).items() if value}


@dataclass(frozen=True)
class DeploymentProgress:
    """How far a deployment is: ``deployment`` is its key (`AgentDescription.key`). ``waiting`` are the actors
    that are not ready, ``problem`` is what went wrong last. ``stands_by``: all that it needs is ready, and
    somebody has to promote it. ``is_in_force``: its keepers have the shards.
    ``is_refused``: it cannot be read on the machine of the caretaker, and the one before goes on.
    ``has_shards``: it was in force before this caretaker, which looks whether all of it is there."""

    deployment: str = ""
    digest: str = ""
    generation: int = 0
    waiting: tuple[str, ...] = ()
    problem: str = ""
    stands_by: bool = False
    is_in_force: bool = False
    is_refused: bool = False
    has_shards: bool = False

    @property
    def rollout(self) -> Rollout | None:
        """What people are told of it; None once it is in force, and before there is any."""
        if self.is_in_force or self.has_shards or not (self.deployment or self.is_refused):
            return None
        return Rollout(
            version=self.digest,
            stands_by=self.stands_by,
            is_refused=self.is_refused,
            waits_for=self.waiting,
            problem=self.problem,
        )


@serve.deployment(
    max_ongoing_requests=1000,  # each gateway has one that waits
    ray_actor_options={"num_cpus": A_LITTLE_CPU},
    health_check_period_s=5,
    graceful_shutdown_timeout_s=_END_WITHIN_S,
    logging_config={"enable_access_log": False},
)
class Caretaker:
    """See the module."""

    def __init__(self) -> None:
        set_up()
        self._newest: Blueprint | None = None
        self._changed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._promoted = asyncio.Event()  # what stands by
        self._progress = DeploymentProgress()
        self._refused: DeploymentProgress | None = None
        """What cannot be read here, and came after what is kept."""
        self._application = serve.get_replica_context().app_name

    async def reconfigure(self, description: dict[str, Any]) -> None:
        """Keeps this agent from now on, or goes on with the one before if this one cannot be read here.
        Raises `ConfigError` if there is none before."""
        key = ""
        try:
            wanted = AgentDescription(**description)
            key = await asyncio.to_thread(lambda: wanted.key)
            config = await asyncio.to_thread(wanted.read)
            if config.name != self._application:
                raise ConfigError(
                    [f"application {self._application} has the agent {config.name}: name it so"]
                )
        except (TypeError, OSError, ConfigError) as problem:
            why = f"{type(problem).__name__}: {problem}"[:_MOST_SAID]
            if not await self._goes_on():
                raise ConfigError([f"{self._application} cannot be read on this machine: {why}"]) from None
            self._refused = DeploymentProgress(key, problem=why, is_refused=True)
            _log.warning("event=deployment_refused %s", fields(message=why))
            return
        await self._stop_keeping()
        self._refused = None
        self._keeping = asyncio.create_task(self._keep(config, key))

    async def newest(self, known: tuple[str, int]) -> Blueprint | None:
        """The blueprint that gateways are to serve, once it is another one than that with this
        `Blueprint.edition`; None after a while."""
        try:
            async with asyncio.timeout(_ASKED_FOR_S):
                while self._newest is None or self._newest.edition == known:
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._newest

    async def progress(self) -> DeploymentProgress:
        """How far the deployment is that Serve asked for last."""
        return self._refused or self._progress

    async def promote(self) -> DeploymentProgress:
        """Has the deployment take the shards, if it stands by. Returns how far it was."""
        before = await self.progress()
        if before.stands_by:
            self._promoted.set()
            self._progress = replace(before, stands_by=False)
        return before

    async def __del__(self) -> None:
        """Called by Serve when this replica ends: for good, or to be replaced by another one."""
        await self._stop_keeping()
        if await asyncio.to_thread(_is_deleted, self._application):
            await asyncio.to_thread(end_all, self._application)

    async def _goes_on(self) -> bool:
        """Whether a deployment before this one goes on, which is kept from now on if it was not."""
        if self._keeping is not None:
            return True
        before = await asyncio.to_thread(blueprint_in_force, self._application)
        if before is None:
            return False
        self._publish(before)
        try:
            config = await asyncio.to_thread(before.config)
        except ConfigError as problem:  # its actors go on; what this machine lacks, others have
            _log.warning("event=not_kept %s", fields(version=before.digest, message=problem))
            return True
        chosen = config.model_copy(update={"data_dir": before.data_dir})
        self._keeping = asyncio.create_task(self._keep(chosen, before.deployment))
        return True

    async def _stop_keeping(self) -> None:
        """Returns when nothing is under way any more that could create an actor."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None

    async def _keep(self, config: Config, key: str) -> None:
        """Does not end by itself, whatever goes wrong."""
        for delay_s in _TRIED_AGAIN.delays():
            before = self._progress
            problem = before.problem if before.deployment == key else ""
            self._progress = DeploymentProgress(key, config.digest, problem=problem)
            try:
                with ExitStack() as stack:
                    await self._deploy(config, key, stack)
            except Exception as failure:  # noqa: BLE001 - a defect must not end it without a word
                _log.exception("event=caretaker_failed")
                self._note(cause_of(failure))
            await asyncio.sleep(delay_s)

    async def _deploy(self, config: Config, key: str, stack: ExitStack) -> None:
        """Makes a deployment what is in force, and looks after it until it is cancelled."""
        agent = await self._tried(
            lambda: DeployedAgent(config, alone=True, one_machine=False, deployment=key)
        )
        if config.store is None:
            holder = Holder("mesh deploy")
            await self._tried(lambda: stack.enter_context(held(config.data_dir, holder, shared=True)))
        await self._tried(agent.find_keepers)
        if agent.has_shards:  # a caretaker before this one has come so far
            self._progress = replace(self._progress, has_shards=True)
            self._publish(agent.blueprint)
        elif await self._tried(agent.is_first):  # nothing has to go on until the nodes are ready
            await self._tried(agent.make_keepers)
        elif self._newest is None and (before := await self._tried(partial(blueprint_in_force, agent.name))):
            self._publish(before)
        await self._until_ready(agent)
        if config.promote == "manual" and not agent.has_shards:
            await self._until_promoted(agent)
            await self._until_ready(agent)  # once more: it may have stood by for days
        await self._tried(agent.make_keepers)
        await self._until_ready(agent)
        self._publish(agent.blueprint)
        generation = agent.blueprint.generation
        self._progress = DeploymentProgress(key, config.digest, generation, is_in_force=True)
        _log.info("event=deployed version=%s generation=%d", config.digest, generation)
        await self._tried(agent.retire_others)
        while True:
            await asyncio.sleep(_FOLLOW_EVERY_S)
            await self._tried(agent.make_missing_keepers)
            await self._tried(agent.follow)

    async def _until_promoted(self, agent: DeployedAgent) -> None:
        """Stands by, as long as anybody else has the shards. On a cluster without a deployment before, its
        gateways pass requests on meanwhile to the keepers that have them, on whichever cluster."""
        if self._newest is None:
            self._publish(agent.blueprint)
        self._promoted.clear()
        self._progress = replace(self._progress, stands_by=True, problem="")
        _log.info("event=stands_by version=%s", agent.config.digest)
        while not self._promoted.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._promoted.wait(), _FOLLOW_EVERY_S)
            if await self._tried(agent.is_first):
                _log.warning("event=promoted_alone version=%s", agent.config.digest)
                return

    async def _until_ready(self, agent: DeployedAgent) -> None:
        """Creates the nodes and sessions, and waits for all actors, however long they take: a machine may
        have to join first."""
        ready: set[str] = set()
        for delay_s in _TRIED_AGAIN.delays():
            await self._tried(agent.make_nodes)
            await self._tried(agent.let_stay)
            if agent.has_shards:
                await self._tried(agent.make_missing_keepers)
            waiting = {name: agent.actors[name] for name in agent.lacked(ready)}
            self._progress = replace(self._progress, waiting=tuple(waiting))
            asked = (self._ask(agent, name, actor, ready) for name, actor in waiting.items())
            await asyncio.gather(*asked)
            if not agent.lacked(ready):
                self._progress = replace(self._progress, waiting=(), problem="")
                return
            await asyncio.sleep(delay_s)

    async def _ask(self, agent: DeployedAgent, name: str, actor: Any, ready: set[str]) -> None:
        """Waits a while for an actor. One that is gone for good is made anew in the next round."""
        try:
            async with asyncio.timeout(_ASKED_FOR_S):
                await actor.ready.remote()
        except TimeoutError:
            self._note(f"{name} does not answer")
        except ActorDiedError as problem:
            agent.forget(name)
            self._note(f"{name} cannot start: {cause_of(problem)}")
        except RayError as problem:
            self._note(f"{name} cannot start: {cause_of(problem)}")
        else:
            ready.add(name)
            waiting = tuple(each for each in self._progress.waiting if each != name)
            self._progress = replace(self._progress, waiting=waiting)

    async def _tried(self, work: Callable[[], T]) -> T:
        """The result of a call of Ray or of the store, which is made again until it succeeds. A call that is
        under way ends before a cancellation is heeded: it may create actors."""
        for delay_s in _TRIED_AGAIN.delays():
            calling = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(calling)
            except asyncio.CancelledError:
                await asyncio.wait({calling})
                raise
            except (RayError, MeshError, ValueError) as problem:
                self._note(cause_of(problem))
            await asyncio.sleep(delay_s)
        raise AssertionError("the delays have no end")

    def _note(self, problem: str) -> None:
        if problem != self._progress.problem:
            _log.warning("event=not_deployed_yet %s", fields(message=problem))
        self._progress = replace(self._progress, problem=problem)

    def _publish(self, blueprint: Blueprint) -> None:
        self._newest = blueprint
        self._changed.set()
        self._changed = asyncio.Event()


def _is_deleted(application: str) -> bool:
    """Whether this replica ends because its application does."""
    try:
        found = serve.status().applications.get(application)
    except (RayError, RayServeException) as problem:  # Serve itself is gone: whoever ended it ends the rest
        _log.warning("event=serve_away %s", fields(message=problem))
        return False
    return found is None or found.status == "DELETING"
