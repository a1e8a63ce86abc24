"""Push notifications: what happens in a conversation, sent to the webhooks that were registered for it."""
