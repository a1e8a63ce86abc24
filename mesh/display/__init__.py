"""Conversations as plain text for people: what the chat and the session log have in common. Pure."""
