"""The agent system itself: config, events, conversations, trees, models, tools. It imports no Ray."""
