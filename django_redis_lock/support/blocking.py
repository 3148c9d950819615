"""A warning for callers that block an event loop."""

from __future__ import annotations

import asyncio
import sys
import warnings

PASSED_OVER = {"django_redis_lock", "contextlib"}
"""Packages that call on behalf of the caller."""


def warn_if_loop_runs() -> None:
    """Warn where this package was called, if the thread is about to block its running event loop.

    The text names no lock, so that Python shows it once for each place.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        "A lock is waited for with a blocking call, which stops the event loop of this thread: "
        "its other tasks can neither run nor release the lock. Use 'async with', or await "
        "aacquire().",
        RuntimeWarning,
        stacklevel=level,
    )
