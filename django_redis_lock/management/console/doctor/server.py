"""The examinations of a server's version, its distance and its clock."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from typing import Any

from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.targets import Target
from django_redis_lock.management.console.durations import duration

ROUND_TRIPS = 21
SLOW = 0.010
"""Seconds of a round trip that are worth a warning."""
SKEW = 1.0
"""Seconds by which clocks may differ."""
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that are supported."""


def examine_version(client: Any, target: Target) -> Iterator[Finding]:
    """Is it new enough?"""
    info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    oldest = OLDEST[name]
    if numbers < oldest and target.scripted:
        needed = f"{name} {'.'.join(map(str, oldest))}"
        yield Finding(FAIL, "version", f"{name} {version}", f"Upgrade to {needed} or newer.")
    else:
        yield Finding(OK, "version", f"{name} {version}")


def examine_round_trip(client: Any, target: Target) -> Iterator[Finding]:
    """How long is a round trip, and does the server's clock agree with this host's?"""
    took = []
    skews = []
    for _ in range(ROUND_TRIPS):
        began, wall = time.monotonic(), time.time()
        seconds, micros = client.time()
        took.append(time.monotonic() - began)
        skews.append((took[-1], seconds + micros / 1_000_000 - wall - took[-1] / 2))
    median = statistics.median(took)
    found = f"{median * 1000:.2f} ms (median of {ROUND_TRIPS})"
    if median > SLOW:
        yield Finding(
            WARN,
            "round trip",
            found,
            "A free lock costs one to take and one to release; bring the server nearer.",
        )
    else:
        yield Finding(OK, "round trip", found)
    yield from _clock(min(skews)[1], target)


def _clock(skew: float, target: Target) -> Iterator[Finding]:
    found = f"the server's is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    if abs(skew) <= SKEW:
        yield Finding(OK, "clock", found)
    elif target.local_clock:
        yield Finding(
            FAIL,
            "clock",
            f"{found}, and with OPTIONS['CLOCK'] = 'local' leases end by the clocks of all hosts",
            "Use NTP on all of them, or leave CLOCK out: then the server's clock decides.",
        )
    else:
        yield Finding(
            WARN,
            "clock",
            found,
            "Leases do not depend on it, but the times that are shown are the server's: use NTP.",
        )


def examine_fence(client: Any, target: Target) -> Iterator[Finding]:
    """Was the clock set back since the last fence was given?"""
    fence = client.get(target.packing.fence_key)
    seconds, _ = client.time()
    last = fence.decode() if isinstance(fence, bytes) else fence or ""
    ahead = int(last) / 1_000_000 - seconds if last.isdecimal() else 0.0
    if ahead > SKEW + 1:
        yield Finding(
            WARN,
            "fence",
            f"the last one is {duration(ahead)} ahead of the server's clock, which was set back",
            "Fences go on rising; the times of acquisition that are shown are wrong meanwhile.",
        )
