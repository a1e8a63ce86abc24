# mypy: ignore-errors
"""a2a-sdk 1.x. Arguments: URL of the agent, binding (JSONRPC or HTTP+JSON)."""

import asyncio
import sys
from uuid import uuid4

from a2a.client import ClientConfig, create_client
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from lines import serve


def text_of(parts):
    return "".join(part.text for part in parts)


def state_of(status):
    return TaskState.Name(status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def of_task(task):
    return {
        "kind": "task",
        "task": task.id,
        "context": task.context_id,
        "state": state_of(task.status),
        "text": "".join(text_of(artifact.parts) for artifact in task.artifacts),
        "says": text_of(task.status.message.parts),
        "history": len(task.history),
    }


def of_event(event):
    kind = event.WhichOneof("payload")
    if kind == "task":
        return of_task(event.task)
    if kind == "message":
        return {"kind": "message", "text": text_of(event.message.parts), "context": event.message.context_id}
    if kind == "artifact_update":
        update = event.artifact_update
        return {
            "kind": "artifact",
            "task": update.task_id,
            "text": text_of(update.artifact.parts),
            "append": update.append,
        }
    update = event.status_update
    says = text_of(update.status.message.parts)
    return {"kind": "status", "task": update.task_id, "state": state_of(update.status), "says": says}


def request_of(asked):
    message = Message(
        message_id=str(uuid4()),
        role=Role.ROLE_USER,
        parts=[Part(text=asked["text"])],
        task_id=asked.get("task", ""),
        context_id=asked.get("context", ""),
    )
    configuration = SendMessageConfiguration(return_immediately=asked["do"] == "start")
    if "push" in asked:
        known = AuthenticationInfo(scheme="Bearer", credentials=asked["credentials"])
        config = TaskPushNotificationConfig(url=asked["push"], token=asked["token"], authentication=known)
        configuration.task_push_notification_config.CopyFrom(config)
    return SendMessageRequest(message=message, configuration=configuration)


async def main(url, binding):
    streaming, plain = [
        await create_client(url, ClientConfig(streaming=streams, supported_protocol_bindings=[binding]))
        for streams in (True, False)
    ]

    async def verbs(asked):
        match asked["do"]:
            case "get":
                yield of_task(await plain.get_task(GetTaskRequest(id=asked["task"])))
            case "list":
                for task in (await plain.list_tasks(ListTasksRequest(context_id=asked["context"]))).tasks:
                    yield of_task(task)
            case "cancel":
                yield of_task(await plain.cancel_task(CancelTaskRequest(id=asked["task"])))
            case "watch":
                async for event in streaming.subscribe(SubscribeToTaskRequest(id=asked["task"])):
                    yield of_event(event)
            case verb:
                client = streaming if verb == "stream" else plain
                async for event in client.send_message(request_of(asked)):
                    yield of_event(event)

    await serve(verbs)


asyncio.run(main(*sys.argv[1:]))
