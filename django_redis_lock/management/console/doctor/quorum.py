"""Compares the members of a quorum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.management.console.doctor.server import SKEW
from django_redis_lock.management.console.doctor.targets import (
    Finding,
    Target,
    fail,
    in_parallel,
    ok,
    pool_of,
    warn,
)
from django_redis_lock.management.console.durations import length


class _Member(NamedTuple):
    address: str
    run_id: str
    clock: float
    """Seconds by which it is ahead of this process's monotonic clock."""
    votes: bool


def members_of(backend: RedlockLockBackend) -> list[Target]:
    delay, patience = backend.rejoin_delay, backend.server_timeout
    return [
        Target(server, pool_of(server), rejoin_delay=delay, patience=patience)
        for server in backend.servers
    ]


def compare_members(backend: RedlockLockBackend, answering: list[Target]) -> Iterator[Finding]:
    known = [member for member in in_parallel(_look, answering) if member is not None]
    yield _majority(backend, len(answering), known)
    yield from _same(known)
    if len(known) > 1:
        yield _clocks(known)


def _look(target: Target) -> _Member | None:
    """Ask a member; return ``None`` if it does not answer."""
    mark_key = f"{target.backend.key_prefix}-server"
    with suppress(RedisError, OSError), target.client() as client:
        run_id = str(client.info("server").get("run_id", ""))
        words = str(client.get(mark_key) or b"", "ascii", "replace").split()
        asked = monotonic()
        seconds, micros = client.time()
        now = seconds + micros / 1_000_000
        clock = now - (asked + monotonic()) / 2
        votes = not target.rejoin_delay or (
            len(words) == 2 and words[0] == run_id and float(words[1]) <= now * 1000
        )
        return _Member(target.address, run_id, clock, votes)
    return None


def _majority(backend: RedlockLockBackend, answering: int, known: list[_Member]) -> Finding:
    size = len(backend.servers)
    needed = majority(size)
    found = f"{answering} of {size} servers answer"
    if answering < needed:
        return fail(
            "quorum",
            f"{found}, but a lock needs {needed}",
            "Start the others, or fix LOCATION or the network.",
        )
    silent = sum(not member.votes for member in known)
    if answering - silent < needed:
        return warn(
            "quorum",
            f"{found}, but {silent} restarted and do not vote yet",
            f"They vote {length(backend.rejoin_delay)} after the first call (REJOIN_DELAY). "
            f"If no lock is held, locks[{backend.alias!r}].admit() admits them at once.",
        )
    if answering == needed:
        found += ": when one more fails, no lock can be acquired"
        return warn("quorum", found, "Start the others.")
    return ok("quorum", f"{found}; {answering - needed} more may fail")


def _same(known: list[_Member]) -> Iterator[Finding]:
    """Find a server that LOCATION names twice, by different hosts."""
    first: dict[str, str] = {}
    for member in known:
        other = first.setdefault(member.run_id or member.address, member.address)
        if other != member.address:
            yield fail(
                "quorum",
                f"{other} and {member.address} are one server (run_id {member.run_id[:12]}), "
                "whose failure counts twice",
                "Set LOCATION to servers that fail independently.",
            )


def _clocks(known: list[_Member]) -> Finding:
    slow = min(known, key=lambda member: member.clock)
    fast = max(known, key=lambda member: member.clock)
    apart = fast.clock - slow.clock
    if apart > SKEW:
        return warn(
            "clocks",
            f"that of {fast.address} is {apart:.3f} s ahead of that of {slow.address}",
            "Run NTP on all members. Fences follow the fastest clock, and each lease ends by its "
            "server's clock.",
        )
    return ok("clocks", f"at most {apart:.3f} s apart")
