"""No library that we use may report about its user.

The package turns this off before any other module of it is imported, and so before any of these libraries is: what
onnxruntime offers after it was imported comes too late for the identifier that it writes into the user's cache.
Processes that are started from here inherit it, and workers of a cluster import this package first.
"""

from __future__ import annotations

import os

OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub and transformers
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray
    "DO_NOT_TRACK": "1",  # others that heed https://donottrack.sh
}


def turn_off() -> None:
    """For any environment: photos are private, and a variable may have been set for another program."""
    os.environ.update(OFF)
