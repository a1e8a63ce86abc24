"""The replies to requests for lists of conversations: from any listing, in a keeper or in a gateway."""

from mesh.journal.listing import Listing, Selection
from mesh.keeper.replies import Conversations, RecentConversations, VersionCounts
from mesh.keeper.requests import CountVersions, Page, Recent

ListRequest = Page | Recent | CountVersions
"""The requests that any listing can answer."""
ListReply = Conversations | RecentConversations | VersionCounts


async def listed(listing: Listing, request: ListRequest) -> ListReply:
    """The reply to a request for a list. Raises `JournalError`."""
    match request:
        case Recent():
            selection = Selection(request.context_id, request.states, request.since)
            return RecentConversations(*await listing.recent(selection, request.limit, request.before))
        case CountVersions():
            counts = await listing.counts_by_version()
            return VersionCounts({version: dict(by_status) for version, by_status in counts.items()})
        case Page():
            found = await listing.page(request.limit + 1, request.before, request.status, request.version)
            return Conversations(found, dict(await listing.counts()))
