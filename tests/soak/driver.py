"""One run from start to end: server, crew, nemesis, calm, drain, and a last look."""

from __future__ import annotations

import contextlib
import time
from time import monotonic

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_lock import Lock
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.soak import checker
from tests.soak.crew import Crew
from tests.soak.heartbeat import Heartbeat
from tests.soak.history import Recorder, read
from tests.soak.nemesis import Nemesis
from tests.soak.plan import LONGEST_LEASE, Plan

CLOCK_BEATS = 20
"""Beats from one comparison of the clocks to the next; the wall clock may be slewed."""
STAY = {"lock-fence", "lock-audit", "lock-lost", "lock-heard"}
"""Keys that are there for all locks, and stay."""
SWEEP_SECONDS = LONGEST_LEASE + 3.0
"""How long a lock may take to come free when nobody is left: its lease, and some time."""


def run(plan: Plan) -> checker.Verdict:
    """Carry out a run and judge it. The histories are left in the plan's directory."""
    recorder = Recorder(plan.directory, 0)
    try:
        # Its data survives a crash, unless the nemesis takes that away.
        with EmbeddedServer(persist=True) as server:
            _soak(plan.begun(server.url()), server, recorder)
    finally:
        recorder.close()
    return checker.check(read(plan.directory))


def _soak(plan: Plan, server: EmbeddedServer, recorder: Recorder) -> None:
    recorder.note("clock", wall=time.time())
    pulse = _ServerPulse(server, recorder)
    pulse.start()
    with Crew(plan, recorder) as crew:
        Nemesis(plan, server, crew, recorder).run()
        recorder.note("calm")
        crew.drain()
        recorder.note("drained")
        _sweep(plan, recorder)
        crew.read_logs()
    pulse.stop()
    _look_for_leftovers(plan, server, recorder)


def _sweep(plan: Plan, recorder: Recorder) -> None:
    """Take and release every lock: each must come free in time, whatever its holders did."""
    backend = RedisLockBackend("sweep", plan.locks())
    for name in plan.all_names():
        since = monotonic()
        lock = Lock(lambda: backend, name, 5, blocking_timeout=SWEEP_SECONDS)
        try:
            if not lock.acquire():
                recorder.note("left", keys=[f"the lock {name!r}, held by {backend.holder(name)}"])
                continue
            lock.release()
        except LockUnavailable as error:
            recorder.note("failed", doing="sweep", trace=str(error), since=since)
    backend.close()


def _look_for_leftovers(plan: Plan, server: EmbeddedServer, recorder: Recorder) -> None:
    """Note what is in the database when nobody uses locks any more, beyond what is to stay."""
    with contextlib.closing(redis.Redis(unix_socket_path=server.unix_socket)) as client:
        found = [key.decode() for key in client.scan_iter()]
        keys = sorted(set(found) - STAY)
        if keys:
            index = [name.decode() for name in client.zrange("lock-index", 0, -1)]
            recorder.note("left", keys=keys, index=index)


class _ServerPulse(Heartbeat):
    """Notes when the server was slow or away, by whatever cause, and how the clocks compare."""

    def __init__(self, server: EmbeddedServer, recorder: Recorder) -> None:
        super().__init__(lambda since: recorder.note("outage", what="slow", since=since))
        self._recorder = recorder
        self._beats = 0
        self._client = redis.Redis(
            unix_socket_path=server.unix_socket, socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )

    def beat(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self._client.ping()
        self._beats += 1
        if self._beats % CLOCK_BEATS == 0:
            self._recorder.note("clock", wall=time.time())

    def stop(self) -> None:
        super().stop()
        self._client.close()
