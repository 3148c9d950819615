"""Compares the members of a quorum."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.management.console.doctor.examination import (
    examine_servers,
    in_parallel,
    of_use,
)
from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.server import SKEW
from django_redis_lock.management.console.doctor.targets import Target, pool_of
from django_redis_lock.management.console.durations import duration


class _Member(NamedTuple):
    """What is compared of a member."""

    address: str
    run_id: str
    clock: float
    """Seconds by which it is ahead of this process's monotonic clock."""
    votes: bool


def members_of(backend: RedlockLockBackend) -> list[Target]:
    return [
        Target(
            server,
            pool_of(server),
            rejoin_delay=backend.rejoin_delay,
            patience=backend.server_timeout,
        )
        for server in backend.servers
    ]


def examine_quorum(
    backend: RedlockLockBackend,
) -> Generator[Finding, None, list[Target]]:
    """Yield the findings of each member and of all; return those that answer."""
    targets = members_of(backend)
    reports = examine_servers(targets)
    for report in reports:
        yield from report
    answering = of_use(targets, reports)
    known = [member for member in in_parallel(_look, answering) if member is not None]
    yield _majority(backend, len(answering), known)
    yield from _same(known)
    if len(known) > 1:
        yield _clocks(known)
    return answering


def _look(target: Target) -> _Member | None:
    """Ask a member; return ``None`` if it does not tell."""
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
        return Finding(
            FAIL,
            "quorum",
            f"{found}, and no lock can be taken with fewer than {needed}",
            "Start the others, or mend LOCATION or the network between.",
        )
    silent = [member.address for member in known if not member.votes]
    if answering - len(silent) < needed:
        return Finding(
            WARN,
            "quorum",
            f"{found}, and of these {len(silent)} were started anew and do not vote yet",
            f"They do {duration(backend.rejoin_delay)} after the first call (REJOIN_DELAY), or at "
            f"once with locks[{backend.alias!r}].admit() if nobody holds a lock.",
        )
    if answering == needed:
        return Finding(
            WARN,
            "quorum",
            f"{found}: when one more fails no lock can be taken",
            "Start the others.",
        )
    return Finding(OK, "quorum", f"{found}; {answering - needed} more may fail")


def _same(known: list[_Member]) -> Iterator[Finding]:
    """Find a server that LOCATION names twice, by different hosts."""
    first: dict[str, str] = {}
    for member in known:
        if not member.run_id:
            continue
        other = first.setdefault(member.run_id, member.address)
        if other != member.address:
            yield Finding(
                FAIL,
                "quorum",
                f"{other} and {member.address} are one server (run_id {member.run_id[:12]}), "
                "whose failure counts twice",
                "Name servers in LOCATION that fail independently.",
            )


def _clocks(known: list[_Member]) -> Finding:
    slow = min(known, key=lambda member: member.clock)
    fast = max(known, key=lambda member: member.clock)
    apart = fast.clock - slow.clock
    if apart > SKEW:
        return Finding(
            WARN,
            "clocks",
            f"that of {fast.address} is {apart:.3f} s ahead of that of {slow.address}",
            "Let a time service slew the clocks of all members: fences follow the fastest, and "
            "leases end by each server's own.",
        )
    return Finding(OK, "clocks", f"{apart:.3f} s apart at the most")
