"""The manifests of k8s/, as they are rendered."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).parents[2] / "k8s"
OVERLAYS = ("dev", "prod")
BUILT_IN = ("v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1")

Manifest = dict[str, Any]


@cache
def committed(overlay: str) -> list[Manifest]:
    """What the overlay comes to, as it was committed."""
    return [*yaml.safe_load_all((K8S / "rendered" / f"{overlay}.yaml").read_text())]


def rendered(overlay: str) -> str | None:
    """What the overlay comes to now; None where kubectl is not installed."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    command = [kubectl, "kustomize", str(K8S / "overlays" / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def of_kind(overlay: str, kind: str) -> list[Manifest]:
    """The manifests of a kind."""
    return [each for each in committed(overlay) if each["kind"] == kind]


def ray_service(overlay: str) -> Manifest:
    """The one RayService."""
    (found,) = of_kind(overlay, "RayService")
    return found


def pods(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """The templates of all pods, each with the name of what makes it."""
    for each in committed(overlay):
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "RayService":
            cluster = each["spec"]["rayClusterConfig"]
            yield f"{name} head", cluster["headGroupSpec"]["template"]
            for group in cluster["workerGroupSpecs"]:
                yield f"{name} {group['groupName']}", group["template"]
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod's template."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def variables(container: Manifest) -> set[str]:
    """The environment that a container is given by name."""
    return {each["name"] for each in container.get("env", ())}
