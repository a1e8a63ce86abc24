"""Ids of tasks: nobody who knows what a client said can tell them."""

import hashlib
import uuid

from tests.a2a.server.serving import served
from tests.worlds.rpc import said


def test_the_id_of_a_task_cannot_be_computed_from_the_id_of_its_message() -> None:
    message_id = str(uuid.uuid4())
    message = {**said("hi"), "messageId": message_id}
    with served() as (rpc, _), served() as (other, _):
        task = rpc.result("SendMessage", {"message": message})["task"]["id"]
        assert rpc.result("SendMessage", {"message": message})["task"]["id"] == task, "the same counts once"
        assert other.result("SendMessage", {"message": message})["task"]["id"] != task
    plain = hashlib.sha256(f"\0{message_id}".encode()).digest()
    assert task != str(uuid.UUID(bytes=plain[:16], version=4))


def test_the_id_of_a_conversation_cannot_be_computed_from_its_idempotency_key() -> None:
    headers = {"Idempotency-Key": "order-7"}
    with served() as (rpc, live):
        made = rpc.http.post("/conversations", json={}, headers=headers).json()["conversation"]["id"]
        live.restart()
        again = rpc.http.post("/conversations", json={}, headers=headers).json()["conversation"]["id"]
    assert again == made
    plain = hashlib.sha256(b"\0order-7").digest()
    assert made != str(uuid.UUID(bytes=plain[:16], version=4))
