"""Push notifications: news of conversations, sent to whoever left an address for them."""
