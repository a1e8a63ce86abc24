# mypy: ignore-errors
"""a2a-sdk 0.3, the last of them. Argument: URL of the agent."""

import asyncio
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    Message,
    MessageSendConfiguration,
    Part,
    PushNotificationAuthenticationInfo,
    PushNotificationConfig,
    Role,
    TaskIdParams,
    TaskQueryParams,
    TextPart,
)
from lines import serve


def text_of(parts):
    return "".join(part.root.text for part in parts if isinstance(part.root, TextPart))


def status_of(status):
    return {"state": status.state.value, "says": text_of(status.message.parts) if status.message else ""}


def of_task(task):
    return {
        "kind": "task",
        "task": task.id,
        "context": task.context_id,
        "text": "".join(text_of(artifact.parts) for artifact in task.artifacts or ()),
        "history": len(task.history or ()),
        **status_of(task.status),
    }


def of_event(event):
    if isinstance(event, Message):
        return {"kind": "message", "text": text_of(event.parts), "context": event.context_id}
    task, update = event if isinstance(event, tuple) else (event, None)
    if update is None:
        return of_task(task)
    if update.kind == "artifact-update":
        text = text_of(update.artifact.parts)
        return {"kind": "artifact", "task": update.task_id, "text": text, "append": bool(update.append)}
    return {"kind": "status", "task": update.task_id, "final": update.final, **status_of(update.status)}


def message_of(asked):
    return Message(
        message_id=str(uuid4()),
        role=Role.user,
        parts=[Part(root=TextPart(text=asked["text"]))],
        task_id=asked.get("task"),
        context_id=asked.get("context"),
    )


def configuration_of(asked):
    configuration = MessageSendConfiguration(blocking=asked["do"] != "start")
    if "push" in asked:
        known = PushNotificationAuthenticationInfo(schemes=["Bearer"], credentials=asked["credentials"])
        config = PushNotificationConfig(url=asked["push"], token=asked["token"], authentication=known)
        configuration.push_notification_config = config
    return configuration


async def main(url):
    async with httpx.AsyncClient(timeout=20) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        streaming, plain = [
            ClientFactory(ClientConfig(streaming=streams, httpx_client=http)).create(card)
            for streams in (True, False)
        ]

        async def verbs(asked):
            match asked["do"]:
                case "get":
                    yield of_task(await plain.get_task(TaskQueryParams(id=asked["task"])))
                case "cancel":
                    yield of_task(await plain.cancel_task(TaskIdParams(id=asked["task"])))
                case "watch":
                    async for event in streaming.resubscribe(TaskIdParams(id=asked["task"])):
                        yield of_event(event)
                case verb:
                    client = streaming if verb == "stream" else plain
                    configuration = configuration_of(asked)
                    async for event in client.send_message(message_of(asked), configuration=configuration):
                        yield of_event(event)

        await serve(verbs)


asyncio.run(main(*sys.argv[1:]))
