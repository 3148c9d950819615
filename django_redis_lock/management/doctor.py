"""``locks doctor``: checks whether the servers are fit for locks.

First each server, then a quorum as a whole, and at last a lock of its own.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from secrets import token_hex
from time import monotonic, sleep
from typing import Any, NamedTuple

import redis
from django.core.management.base import CommandError
from redis.exceptions import RedisError, ResponseError
from redis.sentinel import SentinelConnectionPool

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.clusters import Cluster
from django_redis_lock.backends.clusters.topology import SLOTS
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.errors import OLDEST, reason
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend, ServersLockBackend
from django_redis_lock.backends.redlock import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import lock, locks, semaphore
from django_redis_lock.management.output import Terminal, aliases_of, duration
from django_redis_lock.protocol.calls import ForceRelease, ask
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import own_pool

PRODUCTION = 'In production, set "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend".'
START_IT = "Start the server, or fix LOCATION, its password or the network."
START_SENTINELS = "Start the sentinels, or fix SENTINELS or the name of the master in the URL."
FATAL = ("settings", "server", "cluster", "replicas", "quorum")
"""If one of these checks fails, a lock would fail for the same reason."""
SILENT = ("settings", "server", "quorum")
"""If one of these checks fails, the alias can't be asked at all."""
LEASE = 20.0
"""Seconds after which the lock of the self-test is free, even if this process is killed."""
PATIENCE = 10.0
"""Seconds to wait for it."""
PAUSE = 0.01
ANSWER_WITHIN = 5.0
"""Seconds to wait for an answer at most, whatever the settings say."""
ROUND_TRIPS = 21
SLOW = 0.010
"""Seconds of a round trip that are worth a warning."""
_COMMAND = re.compile(r"run the '([\w|]+)' command")
_REFUSED = re.compile("permission|can't run this command", re.IGNORECASE)


class Finding(NamedTuple):
    status: str
    """``ok``, ``warn`` or ``fail``."""
    check: str
    found: str
    remedy: str = ""
    server: str | None = None


warn, fail = partial(Finding, "warn"), partial(Finding, "fail")


def ok(check: str, found: str, remedy: str = "") -> Finding:
    """Return that all is well, so that there is nothing to remedy."""
    return Finding("ok", check, found)


class Server(NamedTuple):
    """A server as an entry of ``LOCKS`` uses it."""

    backend: ServersLockBackend
    pool: redis.ConnectionPool
    """The backend's pool; only its settings are used."""
    rejoin_delay: float | None = None
    """Seconds for which a member of a quorum does not vote after a restart; of others ``None``."""

    @property
    def address(self) -> str:
        kwargs = self.pool.connection_kwargs
        if isinstance(self.pool, SentinelConnectionPool):
            where = f"the master {self.pool.service_name!r}"
        elif "path" in kwargs:
            where = f"unix:{kwargs['path']}"
        else:
            where = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        return without_passwords(f"{where} database {int(kwargs.get('db') or 0)}")


def run(options: dict[str, Any], terminal: Terminal) -> None:
    findings: list[tuple[str, Finding]] = []
    for using in aliases_of(options["using"]):
        found = list(_check_alias(using))
        findings += [(using, finding) for finding in found]
        if not terminal.as_json:
            _say(using, found, terminal)
    if terminal.as_json:
        facts = ({"using": using, **finding._asdict()} for using, finding in findings)
        failed = (one for one in findings if one[1].status == "fail")
        silent = {using: finding.found for using, finding in failed if finding.check in SILENT}
        not_known = [{"using": using, "error": why} for using, why in silent.items()]
        terminal.json_object("findings", facts, lambda: {"not_known": not_known})
    bad = {"fail": "failed"}
    if options["fail_level"] == "warn":
        bad["warn"] = "warned"
    if count := sum(finding.status in bad for _, finding in findings):
        raise CommandError(f"{count} of {len(findings)} checks {' or '.join(bad.values())}.")


def _say(using: str, findings: list[Finding], terminal: Terminal) -> None:
    style = terminal.style
    paint = {"ok": style.SUCCESS, "warn": style.WARNING, "fail": style.ERROR}
    terminal.say(f"LOCKS[{using!r}]", style.MIGRATE_HEADING)
    for finding in findings:
        text = f"  {finding.status:<5} {finding.check:<12} {finding.found}"
        terminal.say(text, paint[finding.status])
        if finding.remedy:
            terminal.say(f"{'-> ':>21}{finding.remedy}")


def _check_alias(using: str) -> Iterator[Finding]:
    try:
        backend = locks[using]
        findings = list(_check_backend(backend))
        yield from findings
        failed = any(one.status == "fail" and one.check in FATAL for one in findings)
        if not failed and not isinstance(backend, DummyLockBackend):
            yield _test(backend)
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
    elif isinstance(backend, RedlockLockBackend):
        servers = [Server(one, one.pool, backend.rejoin_delay) for one in backend.servers]
        findings = _check_servers(servers)
        yield from findings
        silent = {one.server for one in findings if one[:2] == ("warn", "server")}
        yield _check_majority(len(servers) - len(silent), len(servers))
    elif isinstance(backend, ServersLockBackend):
        try:
            clustered = isinstance(backend.servers, Cluster)
            pools = backend.servers.pools() if clustered else [backend.pool]
        except (RedisError, OSError) as error:
            yield fail("server", f"the cluster could not be reached: {reason(error)}", START_IT)
            return
        yield from _check_servers([Server(backend, pool) for pool in pools])


def _check_servers(servers: list[Server]) -> list[Finding]:
    """Check servers at once: several timeouts take as long as one."""

    def check(server: Server) -> list[Finding]:
        return [one._replace(server=server.address) for one in _check_server(server)]

    with ThreadPoolExecutor(len(servers)) as threads:
        return list(chain(*threads.map(check, servers)))


def _check_server(server: Server) -> Iterator[Finding]:
    denied: dict[str, str] = {}
    try:
        pool = own_pool(server.pool)
        for timeout in ("socket_timeout", "socket_connect_timeout"):
            given = pool.connection_kwargs.get(timeout) or ANSWER_WITHIN
            pool.connection_kwargs[timeout] = min(given, ANSWER_WITHIN)
        with redis.Redis.from_pool(pool) as client:
            with suppress(ResponseError):  # a refusal is an answer
                client.time()
            yield ok("server", f"{server.address} answers")
            for check, examine in _CHECKS.items():
                try:
                    yield from examine(client, server)
                except ResponseError as error:
                    denied[check] = without_passwords(str(error))
    except (RedisError, OSError) as error:
        found = f"{server.address} could not be reached: {reason(error)}"
        status = fail if server.rejoin_delay is None else warn  # a quorum has a finding of its own
        by_sentinels = isinstance(server.pool, SentinelConnectionPool)
        yield status("server", found, START_SENTINELS if by_sentinels else START_IT)
        return
    if denied:
        found = f"{', '.join(denied)}: {next(iter(denied.values()))}"
        remedy = "Ask the server's administrator, or use a user that may run INFO and CONFIG."
        yield warn("not known", found, remedy)


def _check_version(client: Any, server: Server) -> Iterator[Finding]:
    info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    too_old = numbers < OLDEST[name] and isinstance(server.backend, RedisLockBackend)
    status, needed = fail if too_old else ok, f"{name} {'.'.join(map(str, OLDEST[name]))}"
    yield status("version", f"{name} {version}", f"Upgrade to {needed} or newer.")


def _check_round_trip(client: Any, server: Server) -> Iterator[Finding]:
    took = []
    for _ in range(ROUND_TRIPS):
        began = monotonic()
        client.time()
        took.append(monotonic() - began)
    median = statistics.median(took)
    found = f"{median * 1000:.2f} ms (median of {ROUND_TRIPS})"
    remedy = "Move the server closer: acquire and release take a round trip each."
    yield (warn if median > SLOW else ok)("round trip", found, remedy)


def _check_eviction(client: Any, server: Server) -> Iterator[Finding]:
    info = client.info("memory")
    policy = str(info.get("maxmemory_policy", "not known"))
    evicted = int(client.info("stats").get("evicted_keys", 0))
    if policy != "noeviction":
        # Locks expire, so volatile-* policies can evict them too; parked tasks do not.
        what = "held locks and parked tasks" if policy.startswith("allkeys") else "held locks"
        found = f"{policy}: {what} can be evicted when memory runs out; {evicted} keys were evicted"
        remedy = "CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own."
        status = fail if int(info.get("maxmemory", 0)) or evicted else warn
        yield status("eviction", found, remedy)
    elif evicted:
        found = f"noeviction now, but {evicted} keys were evicted since the server started"
        remedy = "They may include locks. CONFIG RESETSTAT resets the count."
        yield warn("eviction", found, remedy)
    else:
        yield ok("eviction", "noeviction: locks are not evicted")


def _check_persistence(client: Any, server: Server) -> Iterator[Finding]:
    info = client.info("persistence")
    written = ("aof_last_write_status", "rdb_last_bgsave_status")
    if failed := [key for key in written if info.get(key, "ok") != "ok"]:
        found = f"{failed[0]} is {info[failed[0]]}: the server refuses writes, or soon will"
        remedy = "Check the server's log: the disk may be full or read-only."
        yield fail("persistence", found, remedy)
    elif int(info.get("aof_enabled", 0)):
        found = "append-only file: locks survive a restart; a power loss can lose the newest"
        yield ok("persistence", f"{found}, unless appendfsync is always")
    elif server.rejoin_delay is not None:
        found = "no append-only file: a restart loses its votes, and only REJOIN_DELAY "
        found += f"({duration(server.rejoin_delay)}) prevents two holders of a lock"
        remedy = "CONFIG SET appendonly yes, or set REJOIN_DELAY to the longest lease."
        yield (warn if server.rejoin_delay else fail)("persistence", found, remedy)
    else:
        found = "no append-only file: a restart loses held locks, and tasks parked since it saved"
        remedy = "CONFIG SET appendonly yes. Without persistence, use locks for efficiency only, "
        remedy += "or check fences on writes, and park no task that must run."
        yield warn("persistence", found, remedy)


def _check_replicas(client: Any, server: Server) -> Iterator[Finding]:
    info = client.info("replication")
    number = int(info.get("connected_slaves", 0))
    replicas = server.backend.servers.replicas
    wanted = replicas.number if replicas else 0
    if info.get("role") != "master":
        found = f"this is a replica of {info.get('master_host')}:{info.get('master_port')}"
        remedy = "Set LOCATION to the primary: a replica grants no locks."
        yield fail("replicas", found, remedy)
    elif number < wanted:
        found = f"{number}, but OPTIONS['REPLICAS'] waits for {wanted}: no lock can be acquired"
        yield fail("replicas", found, "Start the missing replicas, or lower REPLICAS.")
    elif wanted:
        found = f"{number}; a lock or a parked task counts once {wanted} of them have it"
        yield ok("replicas", found)
    elif number:
        found = f"{number}; a failover can lose the newest locks and parked tasks: use fences, "
        yield ok("replicas", f"{found}or set OPTIONS['REPLICAS']")
    else:
        yield ok("replicas", "none: no failover")


def _check_cluster(client: Any, server: Server) -> Iterator[Finding]:
    if isinstance(server.backend.servers, Cluster):
        fields = client.execute_command("CLUSTER INFO")
        state, served = fields.get("cluster_state"), int(fields.get("cluster_slots_ok", 0))
        status = ok if state == "ok" and served >= SLOTS else fail
        found = f"state {state}, {served} of {SLOTS} slots served"
        remedy = "Run CLUSTER NODES to find failed nodes and unserved slots."
        yield status("cluster", found, remedy)
    elif client.info("cluster").get("cluster_enabled"):
        remedy = "Use 'django_redis_lock.backends.redis.RedisLockBackend' with the URLs of some of "
        remedy += "the cluster's nodes as LOCATION, as a list."
        found = "this is a cluster node, but LOCATION names a single server"
        yield fail("cluster", found, remedy)


_CHECKS: dict[str, Callable[[Any, Server], Iterator[Finding]]] = {
    "version": _check_version,
    "round trip": _check_round_trip,
    "eviction": _check_eviction,
    "persistence": _check_persistence,
    "replicas": _check_replicas,
    "cluster": _check_cluster,
}


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


def _test(backend: BaseLockBackend) -> Finding:
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
        elif _REFUSED.search(why):
            remedy = "Compare the user's ACL rule with the one in the documentation."
        return fail("self-test", f"{step}: {why}", remedy)
    shared = ", and shared up to a limit" if backend.can_share else ""
    return ok("self-test", f"acquired, listed, waited, handed off, released by force{shared}")


def _steps(backend: BaseLockBackend) -> Iterator[str]:
    """Try each step after its name. Raises ``LockError``; what is still held is released."""
    using, given = backend.alias, f"django-redis-lock-doctor-{token_hex(8)}"
    first, successor = (lock(given, LEASE, blocking_timeout=PATIENCE, using=using) for _ in "12")
    name, threads = first.name, ThreadPoolExecutor(1)
    try:
        yield "acquire"
        _expect(first.acquire(), "the lock is held")
        yield "list"
        _expect(any(backend.holders(name)), "the held lock is not listed")
        yield "wait"
        _expect(not successor.acquire(blocking_timeout=PAUSE), "two holders have the lock")
        waiting = threads.submit(successor.acquire)
        while not waiting.done() and (holder := backend.holder(name)) and holder.waiters == 0:
            sleep(PAUSE)  # until the server knows that it waits
        if waiting.done():
            waiting.result()
        yield "hand off"
        first.release()
        _expect(waiting.result(), f"the waiter did not get the lock within {PATIENCE:g} s")
        yield "forced release"
        held, most = backend.holder(name), backend.operators.audit_entries
        # Without an entry: those of a health probe would fill the audit.
        taken = held and backend.run(ask(ForceRelease(name, held.token_id, {}, most)))
        _expect(taken, "the lock has no holder")
        successor = first  # that handle would report a loss
        yield "release"
        _expect(first.acquire(blocking=False), "the lock is still held after the forced release")
        first.release()
        if backend.can_share:
            yield "limit"
            permit = semaphore(given, 1, timeout=LEASE, blocking=False, using=using)
            _expect(permit.acquire(), "a semaphore with one permit gave none")
            permit.release()
    finally:
        with suppress(LockError):
            first.release()
        threads.shutdown()
        with suppress(LockError):
            successor.release()


def _expect(succeeded: object, otherwise: str) -> None:
    if not succeeded:
        raise LockError(otherwise)
