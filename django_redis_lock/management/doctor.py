"""``locks doctor``: checks whether the servers are fit for locks.

First the checks of several servers and the self-test, then those of each server.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import groupby, tee
from operator import itemgetter
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import redis
from django.conf import settings
from django.core.management.base import CommandError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.clusters.servers import Cluster
from django_redis_lock.backends.clusters.topology import SLOTS
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.errors import OLDEST, reason
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.backends.servers import ServersLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.management.output import Terminal, aliases_of, duration
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.calls import ForceRelease, ask
from django_redis_lock.support.arguments import Sharing
from django_redis_lock.support.celery_app import celery_app
from django_redis_lock.support.text import escape_unprintable, without_passwords
from django_redis_lock.transport.connections import new_connection, pool_from_url
from django_redis_lock.transport.location import pool_of_cache
from django_redis_lock.transport.parking import PollOutbox

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
PRODUCTION = 'In production, set "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend".'
_MakePool = Callable[[], redis.ConnectionPool | None]
FATAL = ("settings", "server", "cluster", "replicas", "quorum")
"""If one of these checks fails, a lock would fail for the same reason."""
LEASE = 20.0
"""Seconds after which the lock is free, even if this process is killed."""
PATIENCE = 10.0
"""Seconds to wait for the lock."""
PAUSE = 0.01
NAME = "django-redis-lock-doctor-"
FORGOTTEN = timedelta(hours=1)
"""How old a limit of the self-test is if nobody will clear it any more."""
_COMMAND = re.compile(r"run the '([\w|]+)' command")
_REFUSED = re.compile("permission|can't run this command", re.IGNORECASE)
ANSWER_WITHIN = 5.0
"""Seconds to wait for an answer at most, whatever the settings say."""
ROUND_TRIPS = 21
SLOW = 0.010
"""Seconds of a round trip that are worth a warning."""
SKEW = 1.0
"""Seconds by which clocks may differ."""
START_IT = "Start the server, or fix LOCATION, its password or the network."
START_SENTINELS = "Start the sentinels, or fix SENTINELS or the name of the master in the URL."
NO_EVICTION = "CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own."


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
    parks: Callable[[], bool] = bool
    """Returns whether Celery tasks are parked there, for which it may ask the servers."""

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
    usings = aliases_of(options["using"])
    found = ((using, finding) for using in usings for finding in _check_alias(using))
    shown, counted, again = tee(found, 3)
    if terminal.as_json:
        facts = ({"using": using, **finding._asdict()} for using, finding in shown)
        terminal.json_object("findings", facts, partial(_not_known, again))
    else:
        _say(shown, terminal)
    warned = options["fail_level"] == "warn"
    bad = ("fail", "warn") if warned else ("fail",)
    statuses = [finding.status for _, finding in counted]
    if count := sum(status in bad for status in statuses):
        what = "failed or warned" if warned else "failed"
        raise CommandError(f"{count} of {len(statuses)} checks {what}.")


def _not_known(found: Iterable[tuple[str, Finding]]) -> dict[str, Any]:
    """Return, as other commands do, which aliases are not usable or did not answer, and why."""
    silent = ("settings", "server", "quorum")
    whys = {using: one.found for using, one in found if one[:2] in [("fail", it) for it in silent]}
    return {"not_known": [{"using": using, "error": why} for using, why in whys.items()]}


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
    parks = cache(partial(_parks, backend, celery_app()))
    return [Server(backend, pool, parks=parks) for pool in pools]


def _parks(backend: BaseLockBackend, app: Any) -> bool:
    """Whether a task of an app parks messages with a backend, or some of its broker are parked."""
    if app is None or not backend.runs_scripts:
        return False
    with suppress(Exception):  # of Celery, its settings or the server
        from django_redis_lock.celery.options import GUARD
        from django_redis_lock.celery.outbox import outbox_of

        guards = filter(None, (getattr(task, GUARD, None) for task in app.tasks.values()))
        if ("park", backend.alias) in [(g.options.run_policy, g.options.using) for g in guards]:
            return True
        return bool(backend.run(ask(PollOutbox(outbox_of(app))))[1] >= 0)
    return False


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
    unknown = [f"the locks' server: {why}" for why in ours if isinstance(why, str)][:1]
    same_database, same_server = [], []
    others = list(_others({server.backend.servers.location.alias for server in servers}))
    locations = in_parallel(lambda other: _location(other[1]), others)
    for (name, _), location in zip(others, locations, strict=True):
        if isinstance(location, str):
            unknown.append(f"{name}: {location}")
        elif location in ours:
            same_database.append(name)
        elif location and location[0] in run_ids:
            same_server.append(name)
    found, remedy = [], "Fix its settings, start its server, or let its user run INFO."
    if same_database:
        found = [f"clearing {', '.join(same_database)} frees locks: in the same database"]
        remedy = "Give the locks a database of their own, in a cluster servers of their own."
    if unknown:
        found.append(f"not known: {'; '.join(unknown)}")
    if found:
        return warn("sharing", "; ".join(found), remedy)
    if same_server:
        return ok("sharing", f"on the same server, in another database: {', '.join(same_server)}")
    return ok("sharing", "neither a cache nor Celery's broker is on a server of the locks")


def _others(ours: set[str | None]) -> Iterator[tuple[str, _MakePool]]:
    """Yield the caches and brokers. A cache that LOCATION names may exist for the locks alone."""
    for alias, entry in settings.CACHES.items():
        if alias == "default" or alias not in ours:
            yield f"CACHES[{alias!r}]", partial(pool_of_cache, alias, entry)
    if app := celery_app():
        value = app.conf.broker_write_url or app.conf.broker_url or ()
        for url in value.split(";") if isinstance(value, str) else map(str, value):
            if url.startswith(("redis://", "rediss://")):
                yield "Celery's broker", partial(pool_from_url, url)


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
        elif _REFUSED.search(why):
            remedy = (
                "Compare the user's rule with that of the documentation, Restrict the user by ACL."
            )
        return fail("self-test", f"{step}: {why}", remedy)
    shared = ", and shared up to a limit" if backend.can_share else ""
    return ok("self-test", f"acquired, listed, waited, handed off, released by force{shared}")


def _steps(backend: BaseLockBackend) -> Iterator[str]:
    """Try each step after its name. Raises ``LockError``; what is still held is released."""
    name = f"{NAME}{token_hex(8)}"
    handle = partial(Lock, lambda: backend, name, LEASE, blocking_timeout=PATIENCE)
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
        held, most = backend.holder(name), backend.operators.audit_entries
        # Without an entry: those of a probe would fill the audit.
        taken = held and backend.run(ask(ForceRelease(name, held.token_id, {}, most)))
        _expect(taken, "the lock has no holder")
        successor = handle()  # the old handle would report a loss
        yield "release"
        _expect(first.acquire(blocking=False), "the lock is still held after the forced release")
        first.release()
        if backend.can_share:
            yield from _share(backend, name)
    finally:
        with suppress(LockError):
            first.release()
        threads.shutdown()
        with suppress(LockError):
            successor.release()


def _share(backend: BaseLockBackend, name: str) -> Iterator[str]:
    permit = Lock(lambda: backend, name, LEASE, blocking=False, sharing=Sharing(True, 0))
    yield "limit"
    for old in backend.limits():  # of a doctor that was killed
        if old.name.startswith(NAME) and datetime.now(UTC) - old.at > FORGOTTEN:
            backend.set_limit(old.name, None)
    try:
        backend.set_limit(name, 1, by="locks doctor")
        _expect(permit.acquire(), "a semaphore whose limit was set to 1 gave no permit")
        permit.release()
    finally:
        with suppress(LockError):
            permit.release()
        with suppress(LockError):
            backend.set_limit(name, None)


def _expect(succeeded: object, otherwise: str) -> None:
    if not succeeded:
        raise LockError(otherwise)


def _say(findings: Iterator[tuple[str, Finding]], terminal: Terminal) -> None:
    style = terminal.style
    paint = {"ok": style.SUCCESS, "warn": style.WARNING, "fail": style.ERROR}
    for using, found in groupby(findings, itemgetter(0)):
        terminal.say(style.MIGRATE_HEADING(f"LOCKS[{escape_unprintable(using)!r}]"))
        for _, finding in found:
            status = paint[finding.status](f"{finding.status:<5}")
            terminal.say(f"  {status} {finding.check:<12} {escape_unprintable(finding.found)}")
            if finding.remedy:
                terminal.say(f"{'-> ':>21}{escape_unprintable(finding.remedy)}")


def client_of(pool: redis.ConnectionPool) -> Any:
    """Return a client that connects as a pool does, without retries; close it."""
    return redis.Redis.from_pool(_OwnPool(pool))


class _OwnPool(redis.ConnectionPool):
    def __init__(self, like: redis.ConnectionPool) -> None:
        super().__init__(protocol=2)
        self._like = like

    def make_connection(self) -> Any:
        connection = new_connection(self._like)
        for timeout in ("socket_timeout", "socket_connect_timeout"):
            given = getattr(connection, timeout) or ANSWER_WITHIN
            setattr(connection, timeout, min(given, ANSWER_WITHIN))
        connection.retry = Retry(NoBackoff(), 0)
        return connection


def in_parallel(ask: Callable[[Item], Outcome], items: list[Item]) -> list[Outcome]:
    """Return the result for each item. Several timeouts take as long as one."""
    with ThreadPoolExecutor(max(1, len(items))) as threads:
        return list(threads.map(ask, items))


def check_servers(servers: list[Server]) -> tuple[list[Finding], list[Server]]:
    """Check servers in parallel; return the findings, and the servers that can be used."""
    reports = in_parallel(lambda server: list(_findings(server)), servers)
    findings, usable = [], []
    for server, report in zip(servers, reports, strict=True):
        findings += [finding._replace(server=server.address) for finding in report]
        if all(one.status == "ok" for one in report if one.check in ("server", "cluster")):
            usable.append(server)
    return findings, usable


def _findings(server: Server) -> Iterator[Finding]:
    denied: dict[str, str] = {}
    try:
        with client_of(server.pool) as client:
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


def _check_version(client: Any, server: Server) -> list[Finding]:
    info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    too_old = numbers < OLDEST[name] and isinstance(server.backend, RedisLockBackend)
    status, needed = fail if too_old else ok, f"{name} {'.'.join(map(str, OLDEST[name]))}"
    return [status("version", f"{name} {version}", f"Upgrade to {needed} or newer.")]


def _check_round_trip(client: Any, server: Server) -> list[Finding]:
    took, skews = [], []
    for _ in range(ROUND_TRIPS):
        began, wall = time.monotonic(), time.time()
        seconds, micros = client.time()
        took.append(time.monotonic() - began)
        skews.append((took[-1], seconds + micros / 1_000_000 - wall - took[-1] / 2))
    median, (_, skew) = statistics.median(took), min(skews)
    found = f"{median * 1000:.2f} ms (median of {ROUND_TRIPS})"
    remedy = "Move the server closer: acquire and release take a round trip each."
    round_trip = (warn if median > SLOW else ok)("round trip", found, remedy)
    found = f"the server's is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    remedy = "Run NTP on both. Leases do not depend on it, displayed times do."
    return [round_trip, (warn if abs(skew) > SKEW else ok)("clock", found, remedy)]


def _check_eviction(client: Any, server: Server) -> list[Finding]:
    info = client.info("memory")
    policy = str(info.get("maxmemory_policy", "not known"))
    evicted = int(client.info("stats").get("evicted_keys", 0))
    if policy == "noeviction" and not evicted:
        return [ok("eviction", "noeviction: locks are not evicted")]
    if policy == "noeviction":
        found = f"noeviction now, but {evicted} keys were evicted since the server started"
        remedy = "They may include locks. CONFIG RESETSTAT resets the count."
        return [warn("eviction", found, remedy)]
    # Locks expire, so volatile-* policies can evict them too; parked tasks do not.
    parked = ", and parked tasks," if server.parks() and policy.startswith("allkeys") else ""
    found = f"{policy}: held locks{parked} can be evicted when memory runs out"
    status = fail if int(info.get("maxmemory", 0)) or evicted else warn
    return [status("eviction", f"{found}; {evicted} keys were evicted", NO_EVICTION)]


def _check_persistence(client: Any, server: Server) -> list[Finding]:
    info = client.info("persistence")
    for key in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(key, "ok") != "ok":
            found = f"{key} is {info[key]}: the server refuses writes, or soon will"
            remedy = "Check the server's log: the disk may be full or read-only."
            return [fail("persistence", found, remedy)]
    if int(info.get("aof_enabled", 0)):
        kept = "locks and parked tasks" if server.parks() else "locks"
        found = f"append-only file: {kept} survive a restart; a power loss can lose the newest"
        return [ok("persistence", f"{found}, unless appendfsync is always")]
    if server.rejoin_delay is not None:
        found = "no append-only file: a restart loses its votes, and only REJOIN_DELAY "
        found += f"({duration(server.rejoin_delay)}) prevents two holders of a lock"
        remedy = "CONFIG SET appendonly yes, or set REJOIN_DELAY to the longest lease."
        return [(warn if server.rejoin_delay else fail)("persistence", found, remedy)]
    found = "no append-only file: a restart loses the held locks"
    without = "Without it, use locks only to save work, or check fences"
    if server.parks():
        found += ", and tasks that were parked since the last save"
        without += ", and park only tasks that may be lost"
    return [warn("persistence", found, f"CONFIG SET appendonly yes. {without}.")]


def _check_replicas(client: Any, server: Server) -> list[Finding]:
    info = client.info("replication")
    if info.get("role") != "master":
        found = f"this is a replica of {info.get('master_host')}:{info.get('master_port')}"
        return [fail("replicas", found, "Set LOCATION to the primary: a replica grants no locks.")]
    number = int(info.get("connected_slaves", 0))
    replicas = server.backend.servers.replicas
    wanted = replicas.number if replicas else 0
    if number < wanted:
        found = f"{number}, but OPTIONS['REPLICAS'] waits for {wanted}: no lock can be acquired"
        return [fail("replicas", found, "Start the missing replicas, or lower REPLICAS.")]
    if wanted:
        what = "a lock or a parked task" if server.parks() else "a lock"
        return [ok("replicas", f"{number}; {what} counts once {wanted} of them have it")]
    if not number:
        return [ok("replicas", "none: no failover")]
    if not server.parks():
        return [ok("replicas", f"{number}; a failover can lose the newest locks: use fences")]
    found = f"{number}; a failover can lose or repeat the newest locks and parked tasks"
    remedy = (
        "Use fences, store results, and set OPTIONS['REPLICAS'], so that replicas have each "
        "parked task."
    )
    return [warn("replicas", found, remedy)]


def _check_cluster(client: Any, server: Server) -> list[Finding]:
    if not isinstance(server.backend.servers, Cluster):
        if not client.info("cluster").get("cluster_enabled"):
            return []
        found = "this is a cluster node, but LOCATION names a single server"
        remedy = (
            "Use 'django_redis_lock.backends.redis.RedisLockBackend' with the URLs of some of "
            "the cluster's nodes as LOCATION, as a list."
        )
        return [fail("cluster", found, remedy)]
    fields = client.execute_command("CLUSTER INFO")
    state, served = fields.get("cluster_state"), int(fields.get("cluster_slots_ok", 0))
    found = f"state {state}, {served} of {SLOTS} slots served"
    status = ok if state == "ok" and served >= SLOTS else fail
    return [status("cluster", found, "Run CLUSTER NODES to find failed nodes and unserved slots.")]


def _check_channels(client: Any, server: Server) -> list[Finding]:
    backend = server.backend
    publishes = isinstance(backend, RedisLockBackend) and backend.wait == "queue"
    if server.rejoin_delay is not None or not publishes:
        return []
    shard = backend.servers.tag_at(server.pool) if isinstance(backend.servers, Cluster) else ""
    command = "SPUBLISH" if shard else "PUBLISH"
    channel = f"{backend.key_prefix}-grant:{f'{{{shard}}}:' if shard else ''}doctor"
    try:
        client.execute_command(command, channel, "")
    except ResponseError as error:  # which scripts pass over, so that the self-test succeeds
        if shard and "unknown command" in str(error):
            return []  # a cluster without sharded channels has PUBLISH
        found = f"waiters are not notified of their turn: {without_passwords(str(error))}"
        remedy = f'Allow {command}, or set "OPTIONS": {{"WAIT": "poll"}}.'
        return [fail("channels", found, remedy)]
    return []


_CHECKS: dict[str, Callable[[Any, Server], list[Finding]]] = {
    "version": _check_version,
    "round trip": _check_round_trip,
    "eviction": _check_eviction,
    "persistence": _check_persistence,
    "replicas": _check_replicas,
    "cluster": _check_cluster,
    "channels": _check_channels,
}
