"""The keeper: owner of a shard of the conversations, the only writer of their journals."""
