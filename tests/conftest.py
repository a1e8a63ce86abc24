"""What holds for every test."""

import signal

# A shell that runs pytest beside something else (`make test`) lets it ignore SIGINT, and all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
