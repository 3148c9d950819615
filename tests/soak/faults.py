"""The faults, one method each; a method returns False when there was nothing to break just then."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from time import monotonic

import redis

from django_redis_lock import Holder
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.soak.crew import Crew, Worker
from tests.soak.history import Recorder
from tests.soak.plan import Plan

FREEZE = (0.2, 1.6)
DOWN = (0.0, 2.0)
BEYOND_LEASE = (0.1, 0.8)
"""Seconds."""

FAULTS = (
    "kill_worker",
    "kill_holder",
    "pause_worker",
    "pause_holder",
    "flush_scripts",
    "cut_callers",
    "cut_listeners",
    "freeze_server",
    "crash_server_keeping_data",
    "restart_server_keeping_data",
    "restart_server_without_data",
    "break_lock",
)
FREQUENT = (
    "kill_worker",
    "kill_holder",
    "pause_worker",
    "pause_holder",
    "cut_listeners",
    "break_lock",
)
"""Those that leave the others something to do."""


class Faults:
    """What can go wrong, on one server and one crew."""

    def __init__(
        self,
        plan: Plan,
        server: EmbeddedServer,
        crew: Crew,
        recorder: Recorder,
        dice: random.Random,
        rest: Callable[[float], None],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._names = plan.all_names()
        self._server = server
        self._crew = crew
        self._recorder = recorder
        self._dice = dice
        self._rest = rest
        self._later = later
        self._client = redis.Redis(unix_socket_path=server.unix_socket)
        self._backend = RedisLockBackend("nemesis", plan.locks())
        self.all: tuple[Callable[[], bool], ...] = tuple(getattr(self, name) for name in FAULTS)
        self.frequent = tuple(getattr(self, name) for name in FREQUENT)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()
        self._backend.close()

    # Of workers.

    def kill_worker(self) -> bool:
        """SIGKILL for any worker."""
        worker = self._crew.any_running(self._dice)
        if worker is not None:
            self._crew.kill(worker)
        return worker is not None

    def kill_holder(self) -> bool:
        """SIGKILL for a worker that holds a lock."""
        found = self._holding()
        if found is not None:
            self._crew.kill(found[0])
        return found is not None

    def pause_worker(self) -> bool:
        """SIGSTOP for any worker."""
        worker = self._crew.any_running(self._dice)
        if worker is not None:
            self._pause(worker, self._dice.uniform(0.1, 2.0))
        return worker is not None

    def pause_holder(self) -> bool:
        """SIGSTOP for a worker that holds a lock, until its lease has passed."""
        found = self._holding()
        if found is not None:
            worker, holder = found
            self._pause(worker, (holder.ttl or 0.0) + self._dice.uniform(*BEYOND_LEASE))
        return found is not None

    def _pause(self, worker: Worker, seconds: float) -> None:
        self._crew.pause(worker)
        self._later(seconds, lambda: self._crew.resume(worker))

    def _holding(self) -> tuple[Worker, Holder] | None:
        try:
            holders = list(self._backend.holders())
        except LockUnavailable:
            return None
        found = [(worker, item) for item in holders for worker in self._crew.running(item.pid)]
        return self._dice.choice(found) if found else None

    # Of the server.

    def flush_scripts(self) -> bool:
        """Let the server forget the scripts."""
        self._client.script_flush()
        return True

    def cut_callers(self) -> bool:
        """Cut the connections that carry calls."""
        return self._cut("normal")

    def cut_listeners(self) -> bool:
        """Cut the connections that carry grants."""
        return self._cut("pubsub")

    def _cut(self, kind: str) -> bool:
        cut = self._client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        self._recorder.note("cut", what=kind, connections=cut)
        return bool(cut)

    def freeze_server(self) -> bool:
        """Let the server answer nothing for a while, its connections open."""
        since = monotonic()
        self._server.pause()
        self._rest(self._dice.uniform(*FREEZE))
        self._server.resume()
        return self._was_out("frozen", since)

    def crash_server_keeping_data(self) -> bool:
        """Kill the server, and start it again with what it had written."""
        since = monotonic()
        self._server.kill()
        self._rest(self._dice.uniform(*DOWN))
        self._server.restart()
        return self._was_out("crashed", since)

    def restart_server_keeping_data(self) -> bool:
        """Restart the server in good order."""
        since = monotonic()
        self._server.restart()
        return self._was_out("restarted", since)

    def restart_server_without_data(self) -> bool:
        """Kill the server and lose its data: every lock vanishes."""
        since = monotonic()
        self._server.kill()
        for path in self._server.directory.glob("appendonly*"):
            shutil.rmtree(path)
        self._rest(self._dice.uniform(*DOWN))
        self._server.restart()
        self._recorder.note("wiped", since=since)
        return self._was_out("wiped", since)

    def _was_out(self, what: str, since: float) -> bool:
        self._recorder.note("outage", what=what, since=since)
        return True

    # Of a lock.

    def break_lock(self) -> bool:
        """Force the release of a lock, whoever holds it, or only if one holder still does."""
        name, since = self._dice.choice(self._names), monotonic()
        holder = self._backend.holder(name)
        if holder is None:
            return False
        only = holder.token_id if self._dice.random() < 0.5 else None
        try:
            broken = self._backend.force_release(name, only)
        except LockUnavailable:
            self._recorder.note("broken", name=name, fence=None, since=since)
            return False
        if broken is not None:
            self._recorder.note("broken", name=name, fence=broken.fence, since=since)
        return broken is not None
