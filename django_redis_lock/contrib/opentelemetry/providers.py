"""Whether there is an SDK. The providers of the API alone record nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

API = ("opentelemetry.trace", "opentelemetry.metrics")
"""Where the classes of the API are; an SDK has classes of its own."""
LOOK_EVERY = 1.0
"""Seconds between two looks for an SDK. Asking for the global provider takes as long as a span."""


class Provider:
    """A provider of tracers or meters, in whose place an SDK may be set up later."""

    def __init__(self, find: Callable[[], object]) -> None:
        self._find = find
        self._records = False
        self._look_at = 0.0

    def records(self) -> bool:
        """Return whether spans or metrics go anywhere, as of a second ago."""
        now = monotonic()
        if now >= self._look_at:
            self._records = not type(self._find()).__module__.startswith(API)
            self._look_at = math.inf if self._records else now + LOOK_EVERY
        return self._records
