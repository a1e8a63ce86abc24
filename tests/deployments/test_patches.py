"""What is patched or read in Ray beyond its public interface: each test fails when the reason is gone, or has
moved. Then look at what is named in it, and remove or mend that."""

from importlib.util import find_spec
from pathlib import Path


def source(module: str) -> str:
    """The text of a module of Ray, which takes seconds to import."""
    ray = find_spec("ray")
    assert ray is not None and ray.origin is not None
    return (Path(ray.origin).parent / module).read_text()


def test_serve_still_opens_the_port_of_a_replica_on_every_interface() -> None:
    """`deployments.cluster.close_replica`"""
    assert 'add_port_to_grpc_server(self._server, "[::]:0")' in source("serve/_private/replica.py")


def test_ray_still_starts_its_daemons_by_these_methods() -> None:
    """`deployments.cluster._fewer_daemons`"""
    text = source("_private/node.py")
    for name in ("start_log_monitor", "start_monitor", "start_api_server"):
        assert text.count(f"def {name}(") == text.count(f"self.{name}(") == 1
    parameters = source("_private/worker.py")
    assert "no_monitor=" not in parameters and "include_log_monitor=" not in parameters


def test_serve_still_says_why_haproxy_ended_in_the_message_of_a_runtime_error() -> None:
    """`deployments.mesh.cause_of`"""
    raised = """raise RuntimeError(
                    f"HAProxy crashed during startup: {output or"""
    assert raised in source("serve/_private/haproxy.py")


def test_serve_still_opens_the_ports_of_haproxy_itself_on_every_interface() -> None:
    """`deployments.haproxy.confined`"""
    template = source("serve/_private/haproxy_templates.py")
    assert "bind :{{ config.metrics_port }}" in template
    assert "bind *:{{ config.stats_port }}" in template


def test_haproxy_still_answers_404_while_it_knows_no_route() -> None:
    """`deployments.haproxy.confined`"""
    _, _, fallback = source("serve/_private/haproxy_templates.py").partition("\nbackend default_backend\n")
    assert fallback.lstrip().startswith("http-request return status 404")


def test_serve_still_tells_of_its_controller_and_its_replicas_by_the_names_of_actors() -> None:
    """`deployments.cluster.has_serve` and `leave_serve`"""
    assert 'SERVE_CONTROLLER_NAME = "SERVE_CONTROLLER_ACTOR"' in source("serve/_private/constants.py")
    names = source("serve/_private/common.py")
    assert 'REPLICA_ID_FULL_ID_STR_PREFIX = "SERVE_REPLICA::"' in names
    assert 'f"{self.deployment_id.app_name}#{s}"' in names


def test_serve_still_takes_the_version_of_a_deployment_in_code_from_nobody_but_itself() -> None:
    """`deployments.deploying._application`"""
    assert "version=deployment._version or get_random_string()" in source("serve/_private/client.py")
    text = source("serve/deployment.py")
    assert "if not _internal and version is not DEFAULT.VALUE:" in text


def test_serve_still_asks_a_deployment_for_its_application_after_its_constructor() -> None:
    """`deployments.app.Gateway`"""
    assert 'SERVE_BUILD_ASGI_APP_METHOD = "__serve_build_asgi_app__"' in source("serve/_private/replica.py")
    assert "the class must define ``__serve_build_asgi_app__``" in source("serve/api.py")


def test_serve_still_calls_an_application_that_ends_deleting() -> None:
    """`deployments.caretaker._is_deleted`"""
    assert 'DELETING = "DELETING"' in source("serve/schema.py")
