"""The providers that are installed: entry points of the group ``mesh.providers``.

An entry point is imported when one of its models is looked up, and not before, so that a broken package
affects only the agents that use it.
"""

import inspect
import os
import traceback
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from pydantic import ValidationError

from mesh.config.call_lines import refused_arguments
from mesh.core.errors import ConfigError
from mesh.core.spelling import meant, with_article
from mesh.llm.port import Llm
from mesh.llm.provider import ModelEndpoint, Provider

GROUP = "mesh.providers"
_MOST_MESSAGE = 300


@cache
def names() -> frozenset[str]:
    """The prefixes of the models that can be used."""
    return frozenset(_entries())


@cache
def installed(name: str) -> Provider:
    """Returns what the provider with this name declares. Raises `ConfigError` if there is none, if there are
    several, or if the entry point is not a `Provider`."""
    found = _entries().get(name, ())
    if not found:
        raise ConfigError([_unknown(name)])
    if len(found) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in found))
        raise ConfigError(
            [f"several packages provide the models of {name}: {packages}; uninstall all but one"]
        )
    provider = _declared(found[0])
    return provider if provider.name else provider.model_copy(update={"name": name})


def made(provider: Provider, endpoint: ModelEndpoint) -> Llm:
    """Returns the provider's `Llm` for an endpoint. Raises `ConfigError` if it cannot be made, or does not
    fulfil the port."""
    try:
        llm = provider.make(endpoint)
    except Exception as error:
        raise ConfigError([f"the provider {provider.name} cannot be made: {_told(error)}"]) from error
    if lacks := _lacks(type(llm)):
        raise ConfigError(
            [f"the provider {provider.name} made {with_article(type(llm).__name__)}, which {lacks}"]
        )
    return llm


@cache
def _entries() -> Mapping[str, list[EntryPoint]]:
    # Once in a process: to look through all installed packages takes some 20 ms.
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def _unknown(name: str) -> str:
    if not names():
        return "no providers are installed: the installation of the mesh is outdated; run make setup"
    return f"no provider {name} is installed; {meant(name, names())}"


def _declared(entry: EntryPoint) -> Provider:
    who = f"the provider {entry.name} of the package {_package(entry)}"
    try:
        found = entry.load()
    except ValidationError as error:
        raise ConfigError([f"{who} is not declared: {_refused(error)}"]) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package's code may raise anything
        raise ConfigError([f"{who} does not import: {_told(error)}"]) from None
    if not isinstance(found, Provider):
        kind = with_article(type(found).__name__)
        raise ConfigError(
            [f"{who} is not declared: {entry.value} is {kind}; expected a mesh.providers.Provider"]
        )
    if isinstance(found.make, type) and (lacks := _lacks(found.make)):
        raise ConfigError([f"{who} makes {with_article(found.make.__name__)}, which {lacks}"])
    return found


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _lacks(kind: type) -> str:
    """Returns what a class lacks to be an `Llm`, or an empty text."""
    stream, close = getattr(kind, "stream", None), getattr(kind, "close", None)
    if not callable(stream) or inspect.iscoroutinefunction(stream):
        return "has no stream(request) that returns an async iterator of events"
    if not inspect.iscoroutinefunction(close):
        return "has no coroutine close()"
    return ""


def _told(error: BaseException) -> str:
    """Returns an exception in one line, with the line of code that raised it."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_MESSAGE]
    file, line = _raised_at(error)
    return f"{told} ({file}:{line})" if file else told


def _refused(error: ValidationError) -> str:
    """Returns what is wrong with the arguments of a call, each with its line. Values are not shown."""
    file, line = _raised_at(error)
    if error.title != Provider.__name__ or not Path(file).is_file():
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return f"{error.title}: {'; '.join(wrong)} ({file}:{line})"
    code = Path(file).read_text(encoding="utf-8")
    return "; ".join(
        f"{problem} ({file}:{at})" for at, problem in refused_arguments(error, Provider, code, Path(file))
    )


def _raised_at(error: BaseException) -> tuple[str, int]:
    """The last line of a package's code on the way to an error; an empty path if there is none."""
    passed = (f"{os.sep}pydantic{os.sep}", "importlib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not any(part in frame.filename for part in passed)
    ]
    return (frames[-1].filename, frames[-1].lineno or 1) if frames else ("", 1)
