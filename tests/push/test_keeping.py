"""What becomes of webhooks over time: which are kept, which go, and who may still write them."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import mesh.push.service as pushes
from mesh.core.errors import StaleEpoch
from mesh.core.events import moment
from mesh.core.ids import new_id
from mesh.keeper.requests import Caller, Create, DeleteWebhook, ListWebhooks, SetWebhook
from mesh.push.limits import MAX_PER_HOST, DeliveryLimits
from mesh.push.memory import MemoryPushStore
from mesh.push.registry import WebhookKey
from mesh.push.webhook import Webhook
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says
from tests.worlds.ports import free_port
from tests.worlds.receiver import Receiver

URL = "https://hooks.example.com/"
LONG_AGO = moment(-timedelta(days=8))
ADD = ("add", {"n": 1})


async def kept(store: MemoryPushStore) -> set[str]:
    """The conversations of which a store has webhooks."""
    epoch = store._epochs.get(0, 0)
    return set(await store.open(0, epoch, lambda _: True))


async def looked(mesh: WorldMesh) -> None:
    await asyncio.wait_for(mesh.keeper._push._checked.wait(), 30)


async def given(mesh: WorldMesh, store: MemoryPushStore, conversation_id: str, **fields: Any) -> None:
    """A webhook in the store that has been told everything, put there by the keeper's own epoch."""
    seq = len(await mesh.journal.read(conversation_id))
    await store.put(0, store._epochs[0], conversation_id, [Webhook("w", URL, seq=seq, **fields)])


async def test_webhooks_that_are_not_needed_are_dropped_after_a_week() -> None:
    store = MemoryPushStore()
    async with WorldMesh(ScriptedLlm(says("Hi."), says("Hi."), calls(ADD)), push_store=store) as mesh:
        old, fresh, waits = [(await mesh.create("x"))[1]["conversation"]["id"] for _ in range(3)]
        orphan, unborn = new_id(), new_id()
        for conversation_id in (old, waits, orphan):
            await given(mesh, store, conversation_id, since=LONG_AGO)
            _age(mesh, conversation_id)
        await given(mesh, store, fresh, since=moment(-timedelta(days=6)))
        await given(mesh, store, unborn, since=moment(-timedelta(minutes=5)))
        await mesh.crash()
        await looked(mesh)
        assert await kept(store) == {fresh, waits, unborn}


async def test_above_its_bound_a_keeper_forgets_those_of_the_task_that_ended_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushes, "MAX_PER_KEEPER", 3)
    store = MemoryPushStore()
    async with WorldMesh(ScriptedLlm(calls(ADD)), push_store=store) as mesh:
        waiting = [(await mesh.create("x"))[1] for _ in range(3)]
        tasks = [body["conversation"]["id"] for body in waiting]
        for task in tasks:
            assert (await mesh.ask(SetWebhook(task, Webhook("w", URL))))[0] == 200
        status, body = await mesh.ask(SetWebhook(tasks[0], Webhook("more", URL)))
        assert (status, "try again" in body["error"]) == (429, True)
        ended = (await mesh.create())[1]["conversation"]["id"]
        await mesh.ask(DeleteWebhook(tasks[2], "w"))
        assert (await mesh.ask(SetWebhook(ended, Webhook("w", URL))))[0] == 200
        assert (await mesh.ask(SetWebhook(tasks[2], Webhook("w", URL))))[0] == 200
        assert await kept(store) == set(tasks)


async def test_webhooks_that_are_behind_or_whose_task_goes_on_are_not_forgotten_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushes, "MAX_PER_KEEPER", 2)
    store = MemoryPushStore()
    config = "name: test\nllm: {model: scripted}\ncard: {push_hosts: [127.0.0.1]}\n"
    model, receiver = ScriptedLlm(says("One."), says("Two."), calls(ADD)), Receiver()
    nobody, somebody = Webhook("w", f"http://127.0.0.1:{free_port()}/"), Webhook("w", receiver.url)
    async with receiver.up(), WorldMesh(model, config=config, push_store=store) as mesh:
        behind, goes_on = [
            (await mesh.ask(Create(new_id(), Caller(), "x", webhook=webhook)))[1]["conversation"]["id"]
            for webhook in (nobody, somebody)
        ]
        await mesh.say(goes_on, "and on")
        await receiver.until(3)
        await mesh.ask(SetWebhook(goes_on, msgspec.structs.replace(somebody, token="new")))
        deliveries = mesh.keeper._push._deliveries
        await asyncio.wait_for(deliveries._tasks[WebhookKey(goes_on, "w")], 30)
        other = (await mesh.create())[1]["conversation"]["id"]
        assert (await mesh.ask(SetWebhook(other, Webhook("w", URL))))[0] == 429
        assert await kept(store) == {behind, goes_on}


async def test_a_keeper_whose_shard_is_another_ones_changes_no_webhook_and_leaves() -> None:
    store = MemoryPushStore()
    async with WorldMesh(ScriptedLlm(says("Hi.")), push_store=store) as mesh:
        task = (await mesh.create("x"))[1]["conversation"]["id"]
        await mesh.ask(SetWebhook(task, Webhook("w", URL)))
        await store.open(0, store._epochs[0] + 1, lambda _: True)
        assert (await mesh.ask(DeleteWebhook(task, "w")))[0] == 503
        assert mesh.fenced.is_set()
        assert await kept(store) == {task}
        assert (await mesh.ask(SetWebhook(task, Webhook("more", URL))))[0] == 503
        assert [each["id"] for each in (await mesh.ask(ListWebhooks(task)))[1]["webhooks"]] == ["w"]


async def test_a_keeper_that_comes_too_late_does_not_begin() -> None:
    store = MemoryPushStore()
    await store.open(0, 10, lambda _: True)
    mesh = WorldMesh(ScriptedLlm(says("Hi.")), push_store=store)
    with pytest.raises(StaleEpoch):
        await mesh.__aenter__()
    await mesh.__aexit__()


async def test_one_host_takes_no_more_than_its_share_and_the_others_go_on() -> None:
    limits, release, other_is_in = DeliveryLimits(), asyncio.Event(), asyncio.Event()
    inside: list[str] = []

    async def go(host: str) -> None:
        async with limits.slot(host):
            inside.append(host)
            if host == "other":
                other_is_in.set()
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(3 * MAX_PER_HOST):
            group.create_task(go("slow"))
        group.create_task(go("other"))
        await asyncio.wait_for(other_is_in.wait(), 30)
        assert inside.count("slow") == MAX_PER_HOST
        release.set()
    assert inside.count("slow") == 3 * MAX_PER_HOST
    assert limits._hosts == {}


def _age(mesh: WorldMesh, conversation_id: str) -> None:
    """Makes all that happened in a conversation long ago."""
    journals = mesh.journal._journals  # type: ignore[attr-defined]
    events = journals.get(conversation_id, [])
    if events:
        journals[conversation_id] = [msgspec.structs.replace(event, time=LONG_AGO) for event in events]
