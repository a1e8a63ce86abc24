"""Push notifications as clients of A2A meet them: set, shown and deleted in every dialect, and delivered."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.receiver import Receiver
from tests.worlds.rpc import Json, Rpc, said, state

SETTING = SIMPLE + "card: {push_hosts: [127.0.0.1]}\n"
CONFIGS = "/a2a/tasks/{}/pushNotificationConfigs"
UNKNOWN, INVALID = -32001, -32602
SECRETS = {"token": "t0k", "authentication": {"scheme": "Bearer", "credentials": "cr3d"}}
MASKED = {"token": "***", "authentication": {"scheme": "Bearer", "credentials": "***"}}
"""What is shown of them: that they are set."""


@contextmanager
def served(*answers: Any) -> Iterator[tuple[Rpc, LiveMesh, Receiver]]:
    """An agent, and somebody who is told by it."""
    with LiveMesh(Spoken(*(answers or (says("hello"),))), SETTING) as live, Rpc(live.url) as rpc:
        receiver = Receiver()
        up = receiver.up()
        live.run(up.__aenter__())
        try:
            yield rpc, live, receiver
        finally:
            live.run(up.__aexit__(None, None, None))


def sent(rpc: Rpc, url: str, text: str = "hi", task: str = "", **config: Any) -> Json:
    """The task that a message with a config is answered with."""
    push = {"url": url, **config}
    params = {"message": said(text, task), "configuration": {"taskPushNotificationConfig": push}}
    found: Json = rpc.result("SendMessage", params)["task"]
    return found


def test_configs_of_1_0_are_set_shown_listed_and_deleted_on_a_completed_task_too() -> None:
    with served() as (rpc, _, receiver):
        task = rpc.send("hi")["id"]
        config = {"id": "mine", "taskId": task, "url": "https://example.com/tck-push-webhook", **SECRETS}
        shown = config | MASKED
        assert rpc.result("CreateTaskPushNotificationConfig", config) == shown
        assert rpc.result("GetTaskPushNotificationConfig", {"taskId": task, "id": "mine"}) == shown
        assert rpc.result("ListTaskPushNotificationConfigs", {"taskId": task})["configs"] == [shown]
        for _ in range(2):
            assert rpc.result("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "mine"}) is None
        assert rpc.code("GetTaskPushNotificationConfig", {"taskId": task, "id": "mine"}) == UNKNOWN
        assert rpc.result("ListTaskPushNotificationConfigs", {"taskId": task}).get("configs", []) == []
        assert receiver.got == []


def test_configs_over_http_and_json_are_set_shown_listed_and_deleted() -> None:
    with served() as (rpc, _, receiver):
        task = rpc.send("hi")["id"]
        made = rpc.http.post(CONFIGS.format(task), json={"id": "mine", "url": receiver.url, **SECRETS})
        config = {"id": "mine", "taskId": task, "url": receiver.url, **MASKED}
        assert (made.status_code, made.json()) == (200, config)
        assert rpc.http.get(CONFIGS.format(task) + "/mine").json() == config
        assert rpc.http.get(CONFIGS.format(task)).json()["configs"] == [config]
        for _ in range(2):
            assert rpc.http.delete(CONFIGS.format(task) + "/mine").status_code == 200
        assert rpc.http.get(CONFIGS.format(task) + "/mine").status_code == 404


def test_configs_of_0_3_are_set_shown_listed_and_deleted() -> None:
    with served() as (rpc, live, receiver), Rpc(live.url, None) as old:
        task = rpc.send("hi")["id"]
        login = {"schemes": ["Bearer"], "credentials": "cr3d"}
        push = {"id": "mine", "url": receiver.url, "token": "t0k", "authentication": login}
        asked = {"taskId": task, "pushNotificationConfig": push}
        masked = {**push, "token": "***", "authentication": {**login, "credentials": "***"}}
        config = {"taskId": task, "pushNotificationConfig": masked}
        assert old.result("tasks/pushNotificationConfig/set", asked) == config
        wanted = {"id": task, "pushNotificationConfigId": "mine"}
        assert old.result("tasks/pushNotificationConfig/get", wanted) == config
        assert old.result("tasks/pushNotificationConfig/get", {"id": task}) == config
        assert old.result("tasks/pushNotificationConfig/list", {"id": task}) == [config]
        for _ in range(2):
            assert old.result("tasks/pushNotificationConfig/delete", wanted) is None
        assert old.code("tasks/pushNotificationConfig/get", wanted) == UNKNOWN


def test_a_config_without_secrets_shows_none() -> None:
    with served() as (rpc, _, receiver):
        config = {"id": "mine", "taskId": rpc.send("hi")["id"], "url": receiver.url}
        assert rpc.result("CreateTaskPushNotificationConfig", config) == config
        assert (
            rpc.result("GetTaskPushNotificationConfig", {"taskId": config["taskId"], "id": "mine"}) == config
        )


def test_a_config_that_is_sent_back_as_it_was_shown_keeps_its_secrets() -> None:
    with served(calls(("add", {"n": 7})), says("Done.")) as (rpc, live, receiver):
        task = rpc.send("hi")["id"]
        config = {"taskId": task, "id": "mine", "url": receiver.url, **SECRETS}
        shown = rpc.result("CreateTaskPushNotificationConfig", config)
        assert rpc.result("CreateTaskPushNotificationConfig", shown) == shown
        rpc.send("yes", task)
        live.run(receiver.until(2))
        assert {headers["authorization"] for _, headers, _ in receiver.got} == {"Bearer cr3d"}
        assert {headers["x-a2a-notification-token"] for _, headers, _ in receiver.got} == {"t0k"}


def test_secrets_that_are_only_shown_as_set_go_to_no_other_address() -> None:
    with served() as (rpc, _, receiver):
        task = rpc.send("hi")["id"]
        config = {"taskId": task, "id": "mine", "url": receiver.url, **SECRETS}
        shown = rpc.result("CreateTaskPushNotificationConfig", config)
        elsewhere = [
            {**shown, "url": receiver.url + "/other"},
            {**shown, "id": "another"},
            {**shown, "authentication": {"scheme": "Basic", "credentials": "***"}},
            {"taskId": rpc.send("hi")["id"], "url": receiver.url, "token": "***"},
        ]
        for moved in elsewhere:
            refused = rpc.call("CreateTaskPushNotificationConfig", moved)["error"]
            assert refused["code"] == INVALID, moved
            assert "send the secret itself" in refused["message"]
        assert rpc.result("ListTaskPushNotificationConfigs", {"taskId": task})["configs"] == [shown]


def test_a_config_without_an_id_gets_the_tasks_and_there_is_one_such() -> None:
    with served() as (rpc, _, receiver):
        task = rpc.send("hi")["id"]
        for path in ("/a", "/b"):
            config = {"taskId": task, "url": receiver.url + path}
            assert rpc.result("CreateTaskPushNotificationConfig", config)["id"] == task
        configs = rpc.result("ListTaskPushNotificationConfigs", {"taskId": task})["configs"]
        assert [config["url"] for config in configs] == [receiver.url + "/b"]


def test_a_config_in_a_message_gets_all_notifications_of_the_task() -> None:
    with served(calls(("add", {"n": 7})), says("Done.")) as (rpc, live, receiver):
        task = sent(rpc, receiver.url, **SECRETS)
        assert state(task) == "INPUT_REQUIRED"
        rpc.send("yes", task["id"])
        live.run(receiver.until(3))
        assert receiver.told == ["input_required", "artifact", "completed"]
        assert {headers["authorization"] for _, headers, _ in receiver.got} == {"Bearer cr3d"}
        assert {headers["x-a2a-notification-token"] for _, headers, _ in receiver.got} == {"t0k"}
        assert receiver.bodies[0]["statusUpdate"]["status"] == task["status"]
        assert "cr3d" not in rpc.http.get(f"/conversations/{task['id']}").text


def test_a_config_in_a_decision_gets_the_notifications_that_follow() -> None:
    with served(calls(("add", {"n": 7})), says("Done.")) as (rpc, live, receiver):
        task = rpc.send("hi")["id"]
        assert state(sent(rpc, receiver.url, "yes", task)) == "COMPLETED"
        live.run(receiver.until(2))
        assert receiver.told == ["artifact", "completed"]


def test_a_config_in_a_streamed_message_gets_notifications_beside_the_stream() -> None:
    with served() as (rpc, live, receiver):
        params = {
            "message": said("hi"),
            "configuration": {"taskPushNotificationConfig": {"url": receiver.url}},
        }
        assert list(rpc.stream("SendStreamingMessage", params))
        live.run(receiver.until(2))
        assert receiver.told == ["artifact", "completed"]


def test_a_client_of_0_3_gets_notifications_of_0_3() -> None:
    with served() as (_, live, receiver), Rpc(live.url, None) as old:
        message = {
            "kind": "message",
            "messageId": str(uuid4()),
            "role": "user",
            "parts": [{"kind": "text", "text": "hi"}],
        }
        configuration = {"pushNotificationConfig": {"url": receiver.url, "token": "t0k"}}
        task = old.result("message/send", {"message": message, "configuration": configuration})
        live.run(receiver.until(1))
        [(_, headers, told)] = receiver.got
        assert headers["x-a2a-notification-token"] == "t0k"
        assert told == task


def test_notifications_that_were_not_sent_before_a_crash_are_sent_by_the_next_mesh() -> None:
    with served(calls(("add", {"n": 7})), says("Done.")) as (rpc, live, receiver):
        task = sent(rpc, receiver.url)
        live.run(receiver.until(1))
        live.restart()
        rpc.send("yes", task["id"])
        live.run(receiver.until(3))
        assert receiver.told[-2:] == ["artifact", "completed"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "ftp://example.com/hook",
        "http:///hook",
        "http://127.0.0.2/hook",
        "http://localhost/hook",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]:8080/hook",
        "http://[::ffff:10.0.0.1]/hook",
        "http://api.localhost/hook",
        "https://user:pa55@example.com/hook",
        "https://example.com/a b",
        "https://example.com:99999/hook",
        "https://example.com/" + "x" * 2_048,
    ],
)
def test_a_url_that_may_not_be_called_is_refused_and_nothing_is_begun(url: str) -> None:
    with served() as (rpc, live, _):
        task = rpc.send("hi")["id"]
        assert rpc.code("CreateTaskPushNotificationConfig", {"taskId": task, "url": url}) == INVALID
        made = httpx.post(live.url + CONFIGS.format(task), json={"url": url}, headers={"A2A-Version": "1.0"})
        assert 400 <= made.status_code < 500 and "pa55" not in made.text
        params = {"message": said("hi"), "configuration": {"taskPushNotificationConfig": {"url": url}}}
        assert rpc.code("SendMessage", params) == INVALID
        assert rpc.http.get("/conversations").json()["summary"]["total"] == 1


def test_a_token_that_would_break_the_request_is_refused() -> None:
    with served() as (rpc, _, receiver):
        config = {"taskId": rpc.send("hi")["id"], "url": receiver.url}
        for bad in (
            {"token": "a\r\nX-Evil: 1"},
            {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}},
            {"authentication": {"scheme": "Be arer:", "credentials": "a"}},
            {"id": "x" * 129},
        ):
            assert rpc.code("CreateTaskPushNotificationConfig", config | bad) == INVALID


def test_a_task_has_ten_configs_at_most() -> None:
    with served() as (rpc, _, receiver):
        task = rpc.send("hi")["id"]
        for index in range(10):
            config = {"taskId": task, "url": receiver.url, "id": f"{index}"}
            rpc.result("CreateTaskPushNotificationConfig", config)
        config = {"taskId": task, "url": receiver.url, "id": "one more"}
        assert rpc.code("CreateTaskPushNotificationConfig", config) == INVALID
        rpc.result("CreateTaskPushNotificationConfig", config | {"id": "9"})


def test_configs_of_a_task_that_is_not_there_are_an_error() -> None:
    with served() as (rpc, _, receiver):
        for task in (str(uuid4()), "../../etc/passwd", ""):
            config = {"taskId": task, "url": receiver.url, "id": "w"}
            assert rpc.code("CreateTaskPushNotificationConfig", config) == UNKNOWN
            assert rpc.code("ListTaskPushNotificationConfigs", {"taskId": task}) == UNKNOWN
            assert rpc.code("GetTaskPushNotificationConfig", {"taskId": task, "id": "w"}) == UNKNOWN
            assert rpc.code("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "w"}) == UNKNOWN
