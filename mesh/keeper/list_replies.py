"""The replies to requests for lists of conversations: from any listing, in a keeper or in a gateway."""

from mesh.journal.listing import Listing, Selection
from mesh.keeper.replies import Conversations, RecentConversations
from mesh.keeper.requests import Page, Recent


async def listed(listing: Listing, request: Page | Recent) -> Conversations | RecentConversations:
    """The reply to a request for a list. Raises `JournalError`."""
    if isinstance(request, Recent):
        selection = Selection(request.context_id, request.states, request.since)
        return RecentConversations(*await listing.recent(selection, request.limit, request.before))
    found = await listing.page(request.limit + 1, request.before, request.status)
    return Conversations(found, dict(await listing.counts()))
