"""What clients ask about the webhooks of a conversation."""

from collections.abc import Awaitable, Callable

from mesh.keeper.cell import Cell
from mesh.keeper.replies import Webhooks
from mesh.keeper.requests import PushDelete, PushList, PushSet
from mesh.push.service import PushNotifications


class Pushes:
    """Answers with the webhooks there are then, without their secrets: these can be set, and not read.
    ``get`` finds a conversation's cell, or raises `NotFound`."""

    def __init__(self, get: Callable[[str], Awaitable[Cell]], push: PushNotifications) -> None:
        self._get = get
        self._push = push

    async def answer(self, request: PushSet | PushList | PushDelete) -> Webhooks:
        """Answers any of these. Raises `MeshError`."""
        conversation = (await self._get(request.id)).conversation
        match request:
            case PushSet():
                ended = not conversation.turn_open
                webhooks = [await self._push.set(request.id, request.webhook, conversation.seq, ended=ended)]
            case PushList():
                webhooks = self._push.of(request.id)
            case PushDelete():
                await self._push.remove(request.id, request.webhook_id)
                webhooks = self._push.of(request.id)
        return Webhooks([webhook.masked() for webhook in webhooks])
