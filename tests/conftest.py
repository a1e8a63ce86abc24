"""What holds for every test."""

import signal

from hypothesis import settings

# Tests share a machine with others: how long one example takes says nothing about the code.
settings.register_profile("mesh", deadline=None)
settings.load_profile("mesh")

# A shell that runs pytest beside something else (`make test`) lets it ignore SIGINT, and all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
