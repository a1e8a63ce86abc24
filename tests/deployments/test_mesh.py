"""What people are told when the edge does not start."""

from ray.exceptions import RayTaskError

from deployments.mesh import cause_of

HAPROXY = """HAProxy crashed during startup: [NOTICE]   (7) : haproxy version is 2.8.25
[NOTICE]   (7) : path to executable is haproxy
[WARNING]  (7) : config : log format ignored for frontend 'prometheus' since it has no log address.
[ALERT]    (7) : Binding [haproxy.cfg:10] for frontend prometheus: cannot bind socket (Address already in use)
[ALERT]    (7) : [haproxy.main()] Some protocols failed to start their listeners! Exiting.
"""


def wrapped(cause: Exception) -> Exception:
    """As Ray raises what an actor raised."""
    trace = f"ray::HAProxyManager.ready()\n  File ...\n{cause}"
    error: Exception = RayTaskError("ready", trace, cause).as_instanceof_cause()
    return error


def test_what_made_haproxy_end_is_told_and_not_its_warnings() -> None:
    why = "Binding [haproxy.cfg:10] for frontend prometheus: cannot bind socket (Address already in use)"
    assert cause_of(wrapped(RuntimeError(HAPROXY))) == f"HAProxy: {why}"
    assert cause_of(RuntimeError(HAPROXY)) == f"HAProxy: {why}"


def test_the_last_line_of_a_trace_is_told_and_the_first_of_what_it_wraps() -> None:
    assert cause_of(RuntimeError("Traceback\n  File ...\nValueError: no port")) == "ValueError: no port"
    assert cause_of(wrapped(ValueError("no port\nsee the log"))) == "no port"
