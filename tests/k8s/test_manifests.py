"""The manifests of k8s/: what Kubernetes, KubeRay and Ray Serve take, and what keeps others out."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deployments.caretaker import AgentDescription
from deployments.deploying import serve_config
from mesh.access.rules import rules_of
from mesh.config.agent_file import load
from mesh.metrics.monitoring import written
from tests.k8s.custom_kinds import SPECS
from tests.k8s.manifests import (
    BUILT_IN,
    K8S,
    OVERLAYS,
    Manifest,
    committed,
    containers,
    of_kind,
    pods,
    ray_service,
    rendered,
    variables,
)

VERSIONS = ("1.31", "1.34")
ENV = {"DB_PASSWORD": "x", "DB_HOST": "db", "ANTHROPIC_API_KEY": "x"}
MOUNTED = "/etc/mesh/agents"
GRACE_AFTER_LEAVING_S = 30

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@each_overlay
def test_what_is_committed_is_what_the_overlay_comes_to(overlay: str) -> None:
    found = rendered(overlay)
    if found is None:
        pytest.skip("kubectl is not installed, which renders overlays")
    assert found == (K8S / "rendered" / f"{overlay}.yaml").read_text(), (
        f"kubectl kustomize k8s/overlays/{overlay} > k8s/rendered/{overlay}.yaml"
    )


@each_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_each_manifest_of_its_own_kinds(overlay: str, version: str) -> None:
    kinds = []
    for manifest in committed(overlay):
        if manifest["apiVersion"] in BUILT_IN:
            kubernetes_validate.validate(manifest, version, strict=True)
            kinds.append(manifest["kind"])
    assert {"NetworkPolicy", "PodDisruptionBudget", "Job", "ConfigMap", "ServiceAccount"} <= {*kinds}


@each_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_each_pod_also_those_that_kuberay_makes(overlay: str, version: str) -> None:
    for name, template in pods(overlay):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": template["spec"]}
        try:
            kubernetes_validate.validate(pod, version, strict=True)
        except kubernetes_validate.ValidationError as problem:
            raise AssertionError(f"{name}: {problem}") from problem


@each_overlay
def test_kinds_of_others_have_only_fields_that_they_document(overlay: str) -> None:
    for manifest in committed(overlay):
        if manifest["apiVersion"] not in BUILT_IN:
            schema = SPECS[manifest["apiVersion"], manifest["kind"]]
            jsonschema.validate(manifest["spec"], schema)


@each_overlay
def test_serve_is_told_of_the_agent_as_the_command_prints_it(overlay: str) -> None:
    config = load(K8S / "overlays" / overlay / "agent.yaml", ENV)
    expected = serve_config(config, host="0.0.0.0", port=8000, mounted=MOUNTED)
    assert ray_service(overlay)["spec"]["serveConfigV2"] == expected
    (application,) = yaml.safe_load(expected)["applications"]
    description = AgentDescription(**application["deployments"][0]["user_config"])
    maps = of_kind(overlay, "ConfigMap")
    (agents,) = [each for each in maps if each["metadata"]["name"].startswith("mesh-agents-")]
    assert Path(description.file).name in agents["data"], "the file is mounted"
    for name, pod in ray_pods(overlay):
        (mounted,) = [v for v in pod["spec"]["volumes"] if v["name"] == "agents"]
        assert mounted["configMap"]["name"] == agents["metadata"]["name"], name


def ray_pods(overlay: str) -> list[tuple[str, Manifest]]:
    return [(name, pod) for name, pod in pods(overlay) if name.startswith("RayService")]


@each_overlay
@pytest.mark.parametrize("domain", ["", ".mesh", ".mesh.svc", ".mesh.svc.cluster.local"])
def test_the_agent_answers_to_the_names_of_its_service(overlay: str, domain: str) -> None:
    rules = rules_of([load(K8S / "overlays" / overlay / "agent.yaml", ENV)])
    assert rules.problem_with_host(f"mesh-serve-svc{domain}:8000") == ""
    assert rules.problem_with_host("elsewhere.example:8000")


@each_overlay
def test_each_variable_that_the_agent_names_is_given_to_the_pods(overlay: str) -> None:
    text = (K8S / "overlays" / overlay / "agent.yaml").read_text()
    named = {*re.findall(r"\$\{(\w+)\}", text)}
    assert named == {"DB_PASSWORD", "DB_HOST"}
    secrets = {key for each in of_kind(overlay, "Secret") for key in each.get("stringData", ())}
    for name, pod in pods(overlay):
        for container in containers(pod):
            if container["name"] in ("ray-head", "ray-worker", "migrate"):
                assert named <= variables(container) | secrets, name
                assert {"secretRef": {"name": "mesh-secrets", "optional": True}} in container["envFrom"]


@each_overlay
def test_no_container_may_do_more_than_it_needs(overlay: str) -> None:
    for name, pod in pods(overlay):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, (name, container["name"])
            assert context["allowPrivilegeEscalation"] is False, (name, container["name"])
            assert context["capabilities"] == {"drop": ["ALL"]}, (name, container["name"])
            assert "memory" in container["resources"]["limits"], (name, container["name"])
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert committed(overlay)[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@each_overlay
def test_a_worker_gives_its_conversations_away_before_it_is_ended(overlay: str) -> None:
    ((_, worker),) = [(name, pod) for name, pod in ray_pods(overlay) if "head" not in name]
    (container,) = worker["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["mesh", "leave"]
    leaves_within = float(command[command.index("--within") + 1])
    assert worker["spec"]["terminationGracePeriodSeconds"] >= leaves_within + GRACE_AFTER_LEAVING_S
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    (group,) = ray_service(overlay)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert 0 < budget["spec"]["minAvailable"] < group["minReplicas"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()


@each_overlay
def test_the_head_has_nothing_that_serves_a_request(overlay: str) -> None:
    spec = ray_service(overlay)["spec"]
    assert spec["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["excludeHeadPodFromServeSvc"] is True


@each_overlay
def test_the_edge_is_on_a_port_that_kuberay_knows_and_that_its_metrics_do_not_take(overlay: str) -> None:
    ((_, worker),) = [(name, pod) for name, pod in ray_pods(overlay) if "head" not in name]
    ports = {each["name"]: each["containerPort"] for each in worker["spec"]["containers"][0]["ports"]}
    ((_, head),) = [(name, pod) for name, pod in ray_pods(overlay) if "head" in name]
    of_head = {each["name"]: each["containerPort"] for each in head["spec"]["containers"][0]["ports"]}
    assert of_head["serve"] == ports["serve"], "KubeRay makes the service after these"
    edge = yaml.safe_load(ray_service(overlay)["spec"]["serveConfigV2"])["http_options"]
    assert ports == {"serve": edge["port"], "metrics": 8080}
    assert edge == {"host": "0.0.0.0", "port": 8000}


@each_overlay
def test_nothing_is_let_in_but_what_is_listed(overlay: str) -> None:
    """What each policy lets in, from where, to which ports; None: to all."""
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(overlay, "NetworkPolicy")}
    everything = policies.pop("mesh-deny-all")
    assert everything == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    inside = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "mesh"}}}
    let_in: dict[str, list[Any]] = {
        name: [(rule["from"], ports_of(rule)) for rule in spec.get("ingress", ())]
        for name, spec in policies.items()
    }
    assert let_in.pop("mesh-inside") == [([inside], None)]
    assert let_in.pop("mesh-api") == [([labelled("api")], [8000])]
    operator = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}}
    assert let_in.pop("mesh-dashboard") == [
        ([{**operator, **labelled("operator")}, labelled("dashboard")], [8265])
    ]
    assert let_in.pop("mesh-metrics") == [([labelled("metrics")], [8080, 8000])]
    let_in.pop("mesh-database", None)  # of CloudNativePG's operator, to its own pods
    assert all(rules == [] for rules in let_in.values()), let_in


def labelled(access: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {"mesh.dev/access": access}}}


def ports_of(rule: Manifest) -> list[int] | None:
    return [each["port"] for each in rule["ports"]] if "ports" in rule else None


@each_overlay
def test_nothing_gets_out_to_everywhere_but_https(overlay: str) -> None:
    for policy in of_kind(overlay, "NetworkPolicy"):
        for rule in policy["spec"].get("egress", ()):
            is_anywhere = "to" not in rule or any("ipBlock" in each for each in rule["to"])
            if is_anywhere:
                assert {*ports_of(rule)} <= {443, 6443}, policy["metadata"]["name"]  # type: ignore[misc]


def test_in_production_everybody_needs_a_key_and_the_inside_is_encrypted() -> None:
    config = load(K8S / "overlays/prod/agent.yaml", ENV)
    assert config.auth is not None and str(config.auth.keys_file) == "/etc/mesh/keys/keys.yaml"
    cluster = ray_service("prod")["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"].startswith("redis://")
    for name, pod in ray_pods("prod"):
        (container,) = pod["spec"]["containers"]
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert values["RAY_USE_TLS"] == "1", name
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert "/etc/mesh/tls" in mounts and "/etc/mesh/ca" not in mounts, "the authority's key stays outside"


def test_in_production_the_workers_are_spread_over_zones_and_the_database_has_a_synchronous_standby() -> None:
    (workers,) = ray_service("prod")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    spread = {each["topologyKey"] for each in workers["template"]["spec"]["topologySpreadConstraints"]}
    assert "topology.kubernetes.io/zone" in spread
    assert workers["minReplicas"] >= 3
    (database,) = of_kind("prod", "Cluster")
    assert database["spec"]["postgresql"]["synchronous"]["dataDurability"] == "required"
    assert database["spec"]["instances"] >= 3


def test_no_secret_is_committed_but_that_of_the_trial() -> None:
    assert of_kind("prod", "Secret") == []
    assert [each["metadata"]["name"] for each in of_kind("dev", "Secret")] == ["mesh-secrets"]


def test_the_dashboard_and_the_alerts_are_those_of_the_table_of_metrics() -> None:
    folder = K8S / "components/monitoring"
    for name, text in written().items():
        assert (folder / name).read_text() == text, f"python -m mesh.metrics.monitoring {folder}"
    (config_map,) = [e for e in of_kind("prod", "ConfigMap") if e["metadata"]["name"] == "mesh-dashboard"]
    assert json.loads(config_map["data"]["dashboard.json"])["uid"] == "mesh"


def test_the_image_has_what_the_probes_and_the_certificates_call() -> None:
    text = (K8S / "Dockerfile").read_text()
    for program in ("bash", "wget", "openssl"):
        assert re.search(rf"apt-get install .*\b{program}\b", text), program
    assert "USER 1000:1000" in text and "--require-hashes" in text
    ((_, head), *_) = ray_pods("dev")
    assert head["spec"]["securityContext"]["runAsUser"] == 1000


def test_the_image_has_the_versions_that_are_tested_and_nothing_for_tests() -> None:
    root = K8S.parent
    mine, whole = (locked(path) for path in (K8S / "requirements.lock", root / "requirements.lock"))
    assert mine.items() <= whole.items(), "make lock"
    assert {"ray", "psycopg"} <= mine.keys() and "pytest" not in mine


def locked(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)", path.read_text(), re.MULTILINE))
