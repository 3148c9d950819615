"""``locks doctor``: checks whether the servers are fit for locks.

``servers`` checks each server, and ``selftest`` uses a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby, tee
from operator import itemgetter
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.backends.servers.base import ServersLockBackend
from django_redis_lock.backends.servers.cluster import Cluster
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.management.console.doctor.selftest import run_selftest
from django_redis_lock.management.console.doctor.servers import (
    START_IT,
    Finding,
    Server,
    check_servers,
    client_of,
    fail,
    in_parallel,
    ok,
    warn,
)
from django_redis_lock.management.console.selection import aliases_of
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.support.text import visible, without_passwords
from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.location import pool_of_cache

PRODUCTION = 'In production, set "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend".'
_MakePool = Callable[[], redis.ConnectionPool | None]
FATAL = ("settings", "server", "cluster", "replicas", "quorum")
"""If one of these checks fails, a lock would fail for the same reason."""


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Check the servers of the aliases, and report the findings."""
    shown, counted = tee(
        (using, finding)
        for using in aliases_of(options["using"])
        for finding in _check_alias(using)
    )
    if terminal.as_json:
        facts = ({"using": using, **finding._asdict()} for using, finding in shown)
        terminal.json_object("findings", facts)
    else:
        _say(shown, terminal)
    warned = options["fail_level"] == "warn"
    bad = ("fail", "warn") if warned else ("fail",)
    statuses = [finding.status for _, finding in counted]
    if count := sum(status in bad for status in statuses):
        what = "failed or warned" if warned else "failed"
        raise CommandError(f"{count} of {len(statuses)} checks {what}.")


def _check_alias(using: str) -> Iterator[Finding]:
    failed = False
    try:
        backend = locks[using]
        for finding in _check_backend(backend):
            failed = failed or (finding.status == "fail" and finding.check in FATAL)
            yield finding
        if not failed and not isinstance(backend, DummyLockBackend):
            yield run_selftest(backend)
    except InvalidLockBackend as error:
        yield fail("settings", without_passwords(str(error)), "Fix LOCKS.")


def _check_backend(backend: BaseLockBackend) -> Iterator[Finding]:
    messages = backend.check()
    for message in messages:
        status = fail if message.is_serious() else warn
        found = without_passwords(f"{message.msg} ({message.id})")
        yield status("settings", found, message.hint or "")
    if any(message.is_serious() for message in messages):
        return
    if not messages:
        yield ok("settings", "valid")
    if isinstance(backend, LocMemLockBackend):
        yield warn("server", "none: each process has its own locks", PRODUCTION)
    elif isinstance(backend, DummyLockBackend):
        yield warn("server", "none: every acquire succeeds", PRODUCTION)
    elif isinstance(backend, RedlockLockBackend | ServersLockBackend):
        try:
            servers = _servers_of(backend)
        except (RedisError, OSError) as error:
            yield fail("server", f"the cluster could not be reached: {reason(error)}", START_IT)
            return
        findings, usable = check_servers(servers)
        yield from findings
        if isinstance(backend, RedlockLockBackend):
            yield _check_majority(len(usable), len(servers))
        if usable:
            yield _check_sharing(usable)


def _servers_of(backend: RedlockLockBackend | ServersLockBackend) -> list[Server]:
    """Return one server, the members of a quorum, or the masters of a cluster."""
    if isinstance(backend, RedlockLockBackend):
        return [Server(one, one.pool, backend.rejoin_delay) for one in backend.servers]
    pools = backend.servers.pools() if isinstance(backend.servers, Cluster) else [backend.pool]
    return [Server(backend, pool) for pool in pools]


def _check_majority(answering: int, size: int) -> Finding:
    needed = majority(size)
    found = f"{answering} of {size} servers answer"
    if answering < needed:
        remedy = "Start the others, or fix LOCATION or the network."
        return fail("quorum", f"{found}, but a lock needs {needed}", remedy)
    if answering == needed:
        found += ": when one more fails, no lock can be acquired"
        return warn("quorum", found, "Start the others.")
    return ok("quorum", f"{found}; {answering - needed} more may fail")


def _check_sharing(servers: list[Server]) -> Finding:
    """Are caches or Celery's broker on a server of the locks, under any name of the host?

    The system checks compare settings. This compares run ids, which are the same for all names.
    """
    ours = in_parallel(lambda server: _place(lambda: server.pool), servers)
    run_ids = [place[0] for place in ours if isinstance(place, tuple)]
    unknown = [f"the locks' server: {place}" for place in ours if isinstance(place, str)][:1]
    same_database, same_server = [], []
    others = _others()
    places = in_parallel(lambda other: _place(other[1]), others)
    for (name, _), place in zip(others, places, strict=True):
        if isinstance(place, str):
            unknown.append(f"{name}: {place}")
        elif place in ours:
            same_database.append(name)
        elif place and place[0] in run_ids:
            same_server.append(name)
    found = [f"not known: {'; '.join(unknown)}"] if unknown else []
    remedy = "Fix its settings, start its server, or let its user run INFO."
    if same_database:
        found.insert(0, f"clearing {', '.join(same_database)} frees locks: in the same database")
        remedy = "Give the locks a database of their own, in a cluster servers of their own."
    if found:
        return warn("sharing", "; ".join(found), remedy)
    if same_server:
        return ok("sharing", f"on the same server, in another database: {', '.join(same_server)}")
    return ok("sharing", "neither a cache nor Celery's broker is on a server of the locks")


def _others() -> list[tuple[str, _MakePool]]:
    """Return the other users of Redis, by name."""
    found: list[tuple[str, _MakePool]] = [
        (f"CACHES[{alias!r}]", partial(pool_of_cache, alias, entry))
        for alias, entry in settings.CACHES.items()
    ]
    with suppress(ImportError):
        from celery.app import app_or_default

        conf = app_or_default().conf
        value = conf.broker_write_url or conf.broker_url or ()
        urls = value.split(";") if isinstance(value, str) else map(str, value)
        found += [
            ("Celery's broker", partial(pool_from_url, url))
            for url in urls
            if url.startswith(("redis://", "rediss://"))
        ]
    return found


def _place(make_pool: _MakePool) -> tuple[str, int] | str | None:
    """Return a pool's run id and database, or why they are not known; ``None`` without a pool."""
    try:
        pool = make_pool()
        if pool is None:
            return None
        with client_of(pool) as client:
            run_id = str(client.info("server").get("run_id", ""))
        database = int(pool.connection_kwargs.get("db") or 0)
    except Exception as error:  # any error: these settings are not checked
        return reason(error)
    return (run_id, database) if run_id else "it does not report its run_id"


def _say(findings: Iterator[tuple[str, Finding]], terminal: Terminal) -> None:
    style = terminal.style
    paint = {"ok": style.SUCCESS, "warn": style.WARNING, "fail": style.ERROR}
    for using, found in groupby(findings, itemgetter(0)):
        terminal.say(style.MIGRATE_HEADING(f"LOCKS[{visible(using)!r}]"))
        for _, finding in found:
            status = paint[finding.status](f"{finding.status:<5}")
            terminal.say(f"  {status} {finding.check:<12} {visible(finding.found)}")
            if finding.remedy:
                terminal.say(f"{'-> ':>21}{visible(finding.remedy)}")
