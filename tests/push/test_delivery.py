"""News of conversations reach webhooks: in order, once, and whatever dies in between."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ThreadedResolver, web
from aiohttp.abc import ResolveResult

from mesh.core.errors import JournalError
from mesh.core.events import AnyEvent, LlmCall
from mesh.core.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.keeper.requests import Caller, Cancel, Create, DeleteWebhook, ListWebhooks, SetWebhook
from mesh.llm.port import LlmRequest
from mesh.push.delivery import RetryPolicy
from mesh.push.files import FilePushStore
from mesh.push.memory import MemoryPushStore
from mesh.push.port import PushStore
from mesh.push.sender import WebhookSender
from mesh.push.webhook import Webhook
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says
from tests.worlds.receiver import Receiver, status

CONFIG = "name: test\nllm: {model: scripted}\ncard: {push_hosts: [127.0.0.1]}\n"
SOON = RetryPolicy(first_s=0.01, max_s=0.05)
ADD = ("add", {"n": 1})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().up() as receiver:
        yield receiver


@pytest.fixture(params=["memory", "files"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PushStore]:
    made: PushStore = MemoryPushStore() if request.param == "memory" else FilePushStore(tmp_path)
    yield made
    await made.close()


@asynccontextmanager
async def meshed(
    *answers: Any,
    store: PushStore | None = None,
    journal: MemoryJournal | None = None,
    policy: RetryPolicy = SOON,
    config: str = CONFIG,
    sender: WebhookSender | None = None,
) -> AsyncIterator[WorldMesh]:
    mesh = WorldMesh(ScriptedLlm(*answers), journal, config, push_store=store)
    mesh.push_policy, mesh.sender = policy, sender or mesh.sender
    mesh.keepers[0] = mesh._new_keeper()
    async with mesh:
        yield mesh


def hook(receiver: Receiver, name: str = "w", path: str = "", **fields: Any) -> Webhook:
    return Webhook(name, receiver.url + path, **fields)


async def begin(mesh: WorldMesh, webhook: Webhook, text: str = "Hi") -> dict[str, Any]:
    """A conversation with a webhook from its first message on."""
    _, body = await mesh.ask(Create(new_id(), Caller(session_id="s1"), text, webhook=webhook))
    return body


async def set_on(mesh: WorldMesh, conversation_id: str, webhook: Webhook) -> tuple[int, dict[str, Any]]:
    return await mesh.ask(SetWebhook(conversation_id, webhook))


async def test_a_webhook_gets_the_answer_and_then_the_completed_status(receiver: Receiver) -> None:
    async with meshed(says("Hello.")) as mesh:
        body = await begin(mesh, hook(receiver, token="t0k", scheme="Bearer", credentials="cr3d"))
        await receiver.until(2)
    task = body["conversation"]["id"]
    artifact, completed = receiver.bodies[0]["artifactUpdate"], receiver.bodies[1]["statusUpdate"]
    assert artifact["taskId"] == completed["taskId"] == task
    assert artifact["artifact"]["parts"] == [{"text": "Hello."}]
    assert artifact["lastChunk"] is True
    assert completed["status"]["state"] == "TASK_STATE_COMPLETED"
    _, headers, _ = receiver.got[0]
    assert headers["authorization"] == "Bearer cr3d"
    assert headers["x-a2a-notification-token"] == "t0k"
    assert headers["content-type"] == "application/json"


async def test_a_webhook_of_0_3_gets_the_whole_task(receiver: Receiver) -> None:
    async with meshed(says("Hello.")) as mesh:
        body = await begin(mesh, hook(receiver, version="0.3"))
        await receiver.until(1)
    [task] = receiver.bodies
    assert (task["kind"], task["id"]) == ("task", body["conversation"]["id"])
    assert task["status"]["state"] == "completed"
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Hello."}]


async def test_a_webhook_gets_the_pending_approvals_and_the_end_after_the_decision(
    receiver: Receiver,
) -> None:
    async with meshed(calls(ADD), says("Done.")) as mesh:
        body = await begin(mesh, hook(receiver))
        await receiver.until(1)
        uuid = body["result"]["approval"]["uuid"]
        question = receiver.bodies[0]["statusUpdate"]["status"]
        assert question["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert uuid in question["message"]["parts"][0]["text"]
        await mesh.decide(uuid, "approve")
        await receiver.until(3)
    assert receiver.told == ["input_required", "artifact", "completed"]


async def test_a_webhook_gets_the_canceled_and_the_failed_status(receiver: Receiver) -> None:
    async def fails(_: LlmRequest) -> LlmCall:
        raise ValueError("no model")

    async with meshed(calls(ADD)) as mesh:
        body = await begin(mesh, hook(receiver))
        await mesh.ask(Cancel(body["conversation"]["id"]))
        await receiver.until(2)
    async with meshed(fails) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(3)
    assert receiver.told == ["input_required", "canceled", "failed"]


async def test_a_webhook_set_on_a_completed_task_gets_only_what_happens_later(
    receiver: Receiver,
) -> None:
    async with meshed(says("One."), says("Two.")) as mesh:
        _, body = await mesh.create("Hi")
        task = body["conversation"]["id"]
        assert (await set_on(mesh, task, hook(receiver)))[0] == 200
        await mesh.say(task, "And?")
        await receiver.until(2)
    assert receiver.bodies[0]["artifactUpdate"]["artifact"]["parts"] == [{"text": "Two."}]
    assert receiver.told == ["artifact", "completed"]


async def test_notifications_that_fail_are_tried_again_and_arrive_in_order(receiver: Receiver) -> None:
    receiver.answers = [status(500), status(503), status(429), status(408), status(200), status(502)]
    async with meshed(says("Hello.")) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(7)
    assert receiver.told == ["artifact"] * 5 + ["completed"] * 2
    assert receiver.most_at_once == 1


async def test_a_journal_that_cannot_be_read_just_now_delays_a_notification_and_loses_none(
    receiver: Receiver,
) -> None:
    class Unwell(MemoryJournal):
        failures = 2

        async def read(self, conversation_id: str) -> list[AnyEvent]:
            if self.failures:
                self.failures -= 1
                raise JournalError("the disk is busy")
            return await super().read(conversation_id)

    journal = Unwell()
    async with meshed(says("Hello."), journal=journal) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(2)
    assert ["artifactUpdate" in receiver.bodies[0], "statusUpdate" in receiver.bodies[1]] == [True, True]
    assert not journal.failures


async def test_pauses_grow_as_long_as_nothing_arrives_and_then_begin_anew(receiver: Receiver) -> None:
    class Counted(RetryPolicy, frozen=True, kw_only=True):
        counted: list[int] = []

        def pause(self, failures: int) -> float:
            self.counted.append(failures)
            return 0

    policy = Counted()
    receiver.answers = [status(500), status(500), status(500), status(200), status(500), status(500)]
    async with meshed(says("Hello."), policy=policy) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(7)
    assert policy.counted == [1, 2, 3, 1, 2]


def test_a_pause_is_about_twice_the_one_before_and_never_over_its_bound() -> None:
    policy = RetryPolicy(first_s=1, max_s=300)
    for failures, most in ((1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (100_000, 300)):
        assert all(most / 2 <= policy.pause(failures) <= most for _ in range(50))


async def test_a_webhook_that_says_when_to_come_again_is_not_asked_before(receiver: Receiver) -> None:
    receiver.answers = [status(503, **{"Retry-After": "1"})]
    async with meshed(says("Hello.")) as mesh:
        begun = asyncio.get_running_loop().time()
        await begin(mesh, hook(receiver))
        await receiver.until(2)
        assert asyncio.get_running_loop().time() - begun >= 1


async def test_a_webhook_that_was_down_gets_its_notifications_when_it_is_up() -> None:
    receiver = Receiver()
    async with meshed(calls(ADD), says("Done.")) as mesh:
        body = await begin(mesh, hook(receiver))
        await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        async with receiver.up():
            await receiver.until(3)
    assert receiver.told == ["input_required", "artifact", "completed"]


@pytest.mark.parametrize("code", [400, 401, 404, 410])
async def test_a_notification_that_is_refused_is_given_up_and_the_next_one_sent(
    receiver: Receiver, code: int
) -> None:
    receiver.answers = [status(code)]
    async with meshed(says("Hello.")) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(2)
    assert receiver.told == ["artifact", "completed"]


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answer = status(307, Location=f"http://127.0.0.1:{receiver.port}/elsewhere")
    async with meshed(says("Hello.")) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(2)
    assert {path for path, _, _ in receiver.got} == {"/hook"}
    assert receiver.told == ["artifact", "completed"]


async def test_what_happened_too_long_ago_is_given_up_after_one_more_try(receiver: Receiver) -> None:
    receiver.answer = status(500)
    async with meshed(
        says("Hello."), policy=RetryPolicy(first_s=0.01, max_s=0.02, give_up_after_s=-1)
    ) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(2)
    assert receiver.told == ["artifact", "completed"]


async def test_a_slow_webhook_delays_neither_turns_nor_other_webhooks(receiver: Receiver) -> None:
    never = asyncio.Event()

    async def hangs(request: web.Request) -> web.Response:
        if request.path == "/hook/slow":
            await never.wait()
        return web.Response()

    receiver.answer = hangs
    async with meshed(says("One."), says("Two.")) as mesh:
        body = await begin(mesh, hook(receiver, "slow", "/slow"))
        task = body["conversation"]["id"]
        await set_on(mesh, task, hook(receiver, "quick", "/quick"))
        _, body = await mesh.say(task, "And?")
        assert body["result"]["response"] == "Two."
        await receiver.until(3)
        paths = [path for path, _, _ in receiver.got]
        assert paths == ["/hook/slow", "/hook/quick", "/hook/quick"]


async def test_a_webhook_that_does_not_answer_in_time_is_asked_again(receiver: Receiver) -> None:
    never = asyncio.Event()

    async def hangs(request: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    receiver.answers = [hangs]
    async with meshed(says("Hello."), sender=WebhookSender(["127.0.0.1"], timeout_s=3)) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(3)
    assert receiver.told == ["artifact", "artifact", "completed"]


async def test_after_a_crash_webhooks_get_what_is_missing_and_nothing_twice(
    store: PushStore,
) -> None:
    receiver = Receiver()
    async with meshed(calls(ADD), says("Done."), store=store) as mesh:
        async with receiver.up():
            body = await begin(mesh, hook(receiver))
            await receiver.until(1)
            await _noted(mesh)
        await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        await mesh.crash()
        async with receiver.up():
            await receiver.until(3)
            await _noted(mesh)
            await mesh.crash()
            await _noted(mesh)
    assert receiver.told == ["input_required", "artifact", "completed"]


async def test_a_crash_between_two_notifications_of_one_event_repeats_no_acknowledged_one(
    receiver: Receiver, store: PushStore
) -> None:
    receiver.answers = [status(200), status(500)]
    async with meshed(says("Done."), store=store, policy=RetryPolicy(first_s=60)) as mesh:
        await begin(mesh, hook(receiver))
        await receiver.until(2)
        await mesh.crash()
        await receiver.until(3)
    assert receiver.told == ["artifact", "completed", "completed"]


async def test_nothing_is_sent_to_a_webhook_after_it_was_deleted(
    receiver: Receiver, store: PushStore
) -> None:
    receiver.answers = [status(500)]
    async with meshed(says("One."), says("Two."), store=store, policy=RetryPolicy(first_s=5)) as mesh:
        body = await begin(mesh, hook(receiver))
        task = body["conversation"]["id"]
        await receiver.until(1)
        for _ in range(2):
            assert await mesh.ask(DeleteWebhook(task, "w")) == (200, {"webhooks": []})
        await set_on(mesh, task, hook(receiver, "other", "/other"))
        await mesh.say(task, "And?")
        await receiver.until(3)
        await _noted(mesh)
        await mesh.crash()
        await _noted(mesh)
        _, left = await mesh.ask(ListWebhooks(task))
    assert [path for path, _, _ in receiver.got] == ["/hook", "/hook/other", "/hook/other"]
    assert [each["id"] for each in left["webhooks"]] == ["other"]


async def test_a_webhook_that_is_deleted_during_a_delivery_gets_nothing_more(
    receiver: Receiver,
) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    receiver.answers = [waits]
    async with meshed(says("One."), says("Two.")) as mesh:
        task = (await begin(mesh, hook(receiver)))["conversation"]["id"]
        await receiver.until(1)
        await mesh.ask(DeleteWebhook(task, "w"))
        release.set()
        await set_on(mesh, task, hook(receiver, "other", "/other"))
        await mesh.say(task, "And?")
        await receiver.until(3)
    assert [path for path, _, _ in receiver.got] == ["/hook", "/hook/other", "/hook/other"]


async def test_a_webhook_that_is_set_again_as_it_is_goes_on_as_it_was(receiver: Receiver) -> None:
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    receiver.answers = [waits]
    async with meshed(says("One.")) as mesh:
        task = (await begin(mesh, hook(receiver)))["conversation"]["id"]
        await receiver.until(1)
        before = await mesh.ask(ListWebhooks(task))
        assert await set_on(mesh, task, hook(receiver)) == before
        release.set()
        await receiver.until(2)
        await _noted(mesh)
    assert receiver.told == ["artifact", "completed"]


async def test_a_webhook_that_is_changed_gets_what_is_missing_at_its_new_url(
    receiver: Receiver,
) -> None:
    receiver.answers = [status(500)]
    async with meshed(says("One."), policy=RetryPolicy(first_s=60)) as mesh:
        body = await begin(mesh, hook(receiver))
        await receiver.until(1)
        await set_on(mesh, body["conversation"]["id"], hook(receiver, "w", "/new"))
        await receiver.until(3)
    assert [path for path, _, _ in receiver.got] == ["/hook", "/hook/new", "/hook/new"]


class _Rebound(ThreadedResolver):
    """Every name means this machine."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return await super().resolve("127.0.0.1", port, family)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("hooks.example.com", "its address is not public, and card.push_hosts does not name it"),
        ("2130706433", "its url names no host"),  # 127.0.0.1, written as no address
    ],
)
async def test_a_name_that_leads_to_a_private_address_gets_nothing_and_no_secret_is_logged(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, host: str, why: str
) -> None:
    webhook = Webhook("w", f"http://{host}:{receiver.port}/s3cret?key=s3cret", "s3cret", "Bearer", "s3cret")
    config, sender = "name: test\nllm: {model: scripted}\n", WebhookSender(resolver=_Rebound())
    async with meshed(says("One."), says("Two."), config=config, sender=sender) as mesh:
        _, body = await mesh.create("Hi")
        task = body["conversation"]["id"]
        assert (await set_on(mesh, task, webhook))[0] == 200
        await mesh.say(task, "And?")
        await _noted(mesh)
        assert "s3cret" not in str(await mesh.show(task))
    assert receiver.got == []
    assert caplog.text.count("event=push_given_up") == 2
    assert why in caplog.text
    assert "s3cret" not in caplog.text


async def _noted(mesh: WorldMesh) -> None:
    """Returns when the keeper has looked at every webhook, and none is behind."""
    push = mesh.keeper._push
    async with asyncio.timeout(30):
        await push._checked.wait()
        await asyncio.gather(*push._deliveries._tasks.values())
