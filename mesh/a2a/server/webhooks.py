"""A2A's operations on push notification configs, over the keepers. A config is a webhook of the task.

One that is set without an id gets the task's: there is one such a task. Whoever may see a task sees its
configs, and of their secrets only that they are set.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import RequestHandler
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotFoundError

from mesh.keeper.requests import DeleteWebhook, ListWebhooks, RequestFor, SetWebhook
from mesh.push.webhook import A2aVersion, Webhook

R = TypeVar("R")


def version_of(context: ServerCallContext) -> A2aVersion:
    """The version of A2A of a request: methods of 0.3 have a slash in their names."""
    return "0.3" if "/" in context.state.get("method", "") else "1.0"


def webhook_of(config: "pb.TaskPushNotificationConfig", task: str, version: A2aVersion) -> Webhook:
    """The webhook that a config asks for."""
    asked = config.authentication
    return Webhook(config.id or task, config.url, config.token, asked.scheme, asked.credentials, version)


def webhook_in(asked: "pb.SendMessageConfiguration", task: str, version: A2aVersion) -> Webhook | None:
    """The webhook that comes with a message, if one does."""
    if not asked.HasField("task_push_notification_config"):
        return None
    return webhook_of(asked.task_push_notification_config, task, version)


def config_of(webhook: Webhook, task: str) -> "pb.TaskPushNotificationConfig":
    """The config of a webhook."""
    config = pb.TaskPushNotificationConfig(id=webhook.id, task_id=task, url=webhook.url, token=webhook.token)
    if webhook.scheme or webhook.credentials:
        config.authentication.scheme = webhook.scheme
        config.authentication.credentials = webhook.credentials
    return config


class PushOperations(RequestHandler):
    """The part of a handler that is about push notification configs."""

    @abstractmethod
    async def _ask(self, task: str, request: RequestFor[R]) -> R:
        """The keeper's reply about a task. Raises `A2AError`."""

    async def on_create_task_push_notification_config(
        self, params: "pb.TaskPushNotificationConfig", context: ServerCallContext
    ) -> "pb.TaskPushNotificationConfig":
        webhook = webhook_of(params, params.task_id, version_of(context))
        [kept] = await self._webhooks(params.task_id, SetWebhook(params.task_id, webhook))
        return config_of(kept, params.task_id)

    async def on_get_task_push_notification_config(
        self, params: "pb.GetTaskPushNotificationConfigRequest", context: ServerCallContext
    ) -> "pb.TaskPushNotificationConfig":
        webhooks = await self._webhooks(params.task_id, ListWebhooks(params.task_id))
        for webhook in webhooks:
            if webhook.id == params.id or not params.id:  # clients of 0.3 may leave out which
                return config_of(webhook, params.task_id)
        raise TaskNotFoundError(f"task {params.task_id} has no push notification config {params.id[:128]!r}")

    async def on_list_task_push_notification_configs(
        self, params: "pb.ListTaskPushNotificationConfigsRequest", context: ServerCallContext
    ) -> "pb.ListTaskPushNotificationConfigsResponse":
        webhooks = await self._webhooks(params.task_id, ListWebhooks(params.task_id))
        configs = [config_of(webhook, params.task_id) for webhook in webhooks]
        return pb.ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: "pb.DeleteTaskPushNotificationConfigRequest", context: ServerCallContext
    ) -> None:
        await self._webhooks(params.task_id, DeleteWebhook(params.task_id, params.id))

    async def _webhooks(
        self, task: str, request: SetWebhook | ListWebhooks | DeleteWebhook
    ) -> Sequence[Webhook]:
        return (await self._ask(task, request)).webhooks
