"""A runtime of `mesh up` that is installed for one test."""

import os
from pathlib import Path

import pytest


def offer_runtime(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is: a distribution that offers ``up`` of this source, for the processes that are started."""
    site = folder / "site"
    metadata = site / "aruntime-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aruntime\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mesh.runtime]\nray = aruntime:up\n")
    (site / "aruntime.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    return site
