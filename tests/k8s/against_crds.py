"""Holds the rendered manifests against the real definitions of custom kinds: ``make k8s CRDS=DIR``.

DIR has CustomResourceDefinitions as YAML, in any files: those of KubeRay (ray-operator/config/crd/bases),
CloudNativePG (config/crd/bases), cert-manager (deploy/crds) and the Prometheus operator
(example/prometheus-operator-crd).
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.k8s.manifests import BUILT_IN, OVERLAYS, committed


def definitions(folder: Path) -> dict[tuple[str, str], Any]:
    """The schema of each version of each kind."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                found[key] = strict(version["schema"]["openAPIV3Schema"], root=True)
    return found


def strict(schema: Any, *, root: bool = False) -> Any:
    """The schema without room for fields that it does not have."""
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if key not in ("properties", "items")}
    if "properties" in schema:
        made["properties"] = {key: strict(value) for key, value in schema["properties"].items()}
        is_open = schema.get("x-kubernetes-preserve-unknown-fields") or root
        if not is_open and "additionalProperties" not in schema:
            made["additionalProperties"] = False
    if "items" in schema:
        made["items"] = strict(schema["items"])
    made.pop("format", None)
    return made


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with manifests of which a definition is there; and which have none."""
    known = definitions(folder)
    for overlay in OVERLAYS:
        for manifest in committed(overlay):
            key = manifest["apiVersion"], manifest["kind"]
            if manifest["apiVersion"] in BUILT_IN:
                continue
            where = f"{overlay}: {manifest['kind']} {manifest['metadata']['name']}"
            if key not in known:
                yield f"{where}: no definition of {key} in {folder}"
                continue
            for problem in jsonschema.Draft202012Validator(known[key]).iter_errors(manifest):
                yield f"{where}: {'/'.join(map(str, problem.absolute_path))}: {problem.message[:300]}"


if __name__ == "__main__":
    found = [*problems(Path(sys.argv[1]))]
    sys.stdout.write("\n".join(found or ["every manifest is as its definition says"]) + "\n")
    sys.exit(1 if found else 0)
