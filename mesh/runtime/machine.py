"""The machine on which this process runs."""

import platform

_MOST = 64
MACHINE = platform.node()[:_MOST]
"""Its name in its network: on Kubernetes that of the pod."""
