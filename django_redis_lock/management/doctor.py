"""``locks doctor``: checks whether the servers are fit for locks.

``servers`` has the checks of each server. Here are those of several, and the self-test.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import groupby, tee
from operator import itemgetter
from secrets import token_hex
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.clusters.servers import Cluster
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.errors import reason
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.backends.servers import ServersLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.management.output import Terminal
from django_redis_lock.management.selection import aliases_of
from django_redis_lock.management.servers import (
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
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.text import visible, without_passwords
from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.location import pool_of_cache

PRODUCTION = 'In production, set "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend".'
_MakePool = Callable[[], redis.ConnectionPool | None]
FATAL = ("settings", "server", "cluster", "replicas", "quorum")
"""If one of these checks fails, a lock would fail for the same reason."""
LEASE = 20.0
"""Seconds after which the lock is free, even if this process is killed."""
PATIENCE = 10.0
"""Seconds to wait for the lock."""
PAUSE = 0.01
_COMMAND = re.compile(r"run the '([\w|]+)' command")


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
    ours = in_parallel(lambda server: _location(lambda: server.pool), servers)
    run_ids = [location[0] for location in ours if isinstance(location, tuple)]
    unknown = [f"the locks' server: {location}" for location in ours if isinstance(location, str)][
        :1
    ]
    same_database, same_server = [], []
    others = _others()
    locations = in_parallel(lambda other: _location(other[1]), others)
    for (name, _), location in zip(others, locations, strict=True):
        if isinstance(location, str):
            unknown.append(f"{name}: {location}")
        elif location in ours:
            same_database.append(name)
        elif location and location[0] in run_ids:
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


def _location(make_pool: _MakePool) -> tuple[str, int] | str | None:
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


def run_selftest(backend: BaseLockBackend) -> Finding:
    """Acquire a lock, wait for it, hand it off, list it and take it away by force."""
    step = ""
    try:
        for step in _steps(backend):  # noqa: B007 - is read when one fails
            pass
    except LockError as error:
        remedy, why = "Check the server's state and log.", str(error)
        if command := _COMMAND.search(why):
            pool = getattr(backend, "pool", None)
            user = (pool.connection_kwargs.get("username") if pool else None) or "default"
            remedy = f"ACL SETUSER {user} +{command[1].lower()}"
        elif "permission" in why.lower():
            remedy = (
                "Compare the user's rule with that of the documentation, Restrict the user by ACL."
            )
        return fail("self-test", f"{step}: {why}", remedy)
    return ok("self-test", "acquired, listed, waited, handed off, and released by force")


def _steps(backend: BaseLockBackend) -> Iterator[str]:
    """Try each step after its name. Raises ``LockError``; what is still held is released."""
    name = f"django-redis-lock-doctor-{token_hex(8)}"

    def handle() -> Lock:
        return Lock(lambda: backend, name, LEASE, blocking_timeout=PATIENCE)

    first, successor, threads = handle(), handle(), ThreadPoolExecutor(1)
    try:
        yield "acquire"
        _expect(first.acquire(), "the lock is held")
        yield "list"
        _expect(any(backend.holders(name)), "the held lock is not listed")
        yield "wait"
        _expect(not successor.acquire(blocking_timeout=PAUSE), "two holders have the lock")
        waiting = threads.submit(successor.acquire)
        while not waiting.done():
            holder = backend.holder(name)
            if holder is None or holder.waiters != 0:  # as far as the server knows
                break
            time.sleep(PAUSE)
        else:
            waiting.result()
        yield "hand off"
        first.release()
        _expect(waiting.result(), f"the waiter did not get the lock within {PATIENCE:g} s")
        yield "forced release"
        taken = backend.force_release(name, by="locks doctor", reason="self-test")
        _expect(taken, "the lock has no holder")
        successor = handle()  # the old handle would report a loss
        yield "release"
        _expect(first.acquire(blocking=False), "the lock is still held after the forced release")
        first.release()
    finally:
        _give_back(first)
        threads.shutdown()
        _give_back(successor)


def _expect(succeeded: object, otherwise: str) -> None:
    if not succeeded:
        raise LockError(otherwise)


def _give_back(lock: Lock) -> None:
    with suppress(LockError):
        if lock.owned():
            lock.release()


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
