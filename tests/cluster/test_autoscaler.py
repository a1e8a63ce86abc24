"""Load adds machines, and less load takes them away: Ray's autoscaler, with its provider of fake machines."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person
from tests.cluster.rest import until
from tests.cluster.test_deploy import Deployed, processes
from tests.cluster.test_join import running_ray
from tests.worlds.long import takes_long

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900), takes_long]

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "c" * 64}
HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
"""The id that the provider knows the head by."""
AUTOSCALER = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
}
_NO_COMMANDS = (
    *("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"),
)
PEOPLE = 14
KEEPERS = {"min": 1, "max": 3, "target": 5, "resources": {"num_cpus": 1}}


def machine_types(port: int) -> dict[str, Any]:
    """What Ray's autoscaler is told: as many as two machines with one CPU join a head that has two."""
    return {
        "cluster_name": "mesh",
        "max_workers": 2,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.1,
        "provider": {
            # By its class: the defaults that its own type has are missing in the package (ray 2.60).
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": HEAD,
            "gcs_address": f"127.0.0.1:{port}",
        },
        **dict.fromkeys(_NO_COMMANDS, ()),
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "ray.worker.default": {
                "resources": {"CPU": 1},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 2,
            },
        },
    }


@pytest.fixture
def deployed(tmp_path: Path, model: Model) -> Iterator[Deployed]:
    (tmp_path / "failpoints").mkdir()

    def options(port: int) -> list[str]:
        file = tmp_path / "autoscaler.yaml"
        file.write_text(json.dumps(machine_types(port)))
        return [f"--autoscaling-config={file}"]

    with running_ray(tmp_path, {**TOKEN, **AUTOSCALER, **model.env}, more=options) as address:
        yield Deployed(tmp_path, address, {**TOKEN, **model.env})


def keepers_and_machines(deployed: Deployed) -> tuple[int, int]:
    running = psutil.process_iter(["cmdline", "environ"], ad_value={})
    of_cluster = [e for e in running if e.info["environ"].get("RAY_AUTH_TOKEN") == deployed.token]
    raylets = [
        each for each in of_cluster if each.info["cmdline"] and each.info["cmdline"][0].endswith("/raylet")
    ]
    return len(processes("KeeperActor", deployed)), len(raylets)


def test_load_adds_machines_and_less_load_takes_them_away_without_an_error(deployed: Deployed) -> None:
    deployed.deploy(cluster={"keepers": KEEPERS})
    assert keepers_and_machines(deployed) == (1, 1)
    with Client(deployed.url) as client:
        person = Person(client, lambda: Counter(deployed.lines()))
        waiting = person.open()
        approval = person.ask_to_append(waiting)
        with deployed.asking_all_the_time("sleep 1", PEOPLE) as busy:
            until(lambda: keepers_and_machines(deployed) == (3, 3))
        with deployed.asking_all_the_time("sleep 1", 1) as calm:
            until(lambda: keepers_and_machines(deployed) == (1, 1), within_s=400)
        assert {*busy, *calm} == {201}
        assert len(busy) > PEOPLE
        person.settle(waiting, approval)
    assert deployed.lines() == waiting.lines
