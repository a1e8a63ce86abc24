"""Packages that are installed for one test: a module and its entry points, found on ``sys.path``."""

import sys
from pathlib import Path

import pytest

from mesh.llm import installed, models


def install(site: Path, name: str, source: str, entry_points: str, version: str = "1.0") -> None:
    """Writes a distribution ``name`` with one module of that name, and the group ``mesh.providers``."""
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[mesh.providers]\n{entry_points}\n")
    (site / f"{name}.py").write_text(source)


def use(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the packages of a folder those of this process. What was known of others is forgotten."""
    monkeypatch.syspath_prepend(str(site))
    forget()


def forget() -> None:
    for known in (installed.names, installed.installed, installed._entries, models.bare_model):
        known.cache_clear()


def unload(names: list[str]) -> None:
    for name in names:
        sys.modules.pop(name, None)
