"""Keeps this process's word to each server in the background: leases renewed, locks given back.

No server waits for another: each has threads of its own.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Generator, Hashable, Iterable, Sequence
from time import monotonic
from typing import Any

from django_redis_lock.backends.keeping import NOTE_FOR, Kept, Server, Withdrawal, Withdrawing
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import audit, conversation
from django_redis_lock.protocol.calls import NoteLosses, Release, ReleaseMany, Step
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")
EXIT = 1.0
"""Seconds for which the end of the process waits for releases that could not be sent before."""


class Renewer:
    """Keeps every registered lease alive until it is discarded, lost or garbage.

    A lease is renewed when a third of it has passed, together with others of the same server that
    are due soon. While the server can't be reached it is tried again until the lease has passed,
    which is a loss.

    A lock that was handed over is looked after once more, shortly after it was taken: the server
    takes it back where it does not hear of its new holder.

    A release, or the withdrawal of a request, that did not reach the server is sent here as soon as
    it can be, so that the server does not keep a lock for nobody.
    """

    IDLE = 5.0
    """Seconds between looks at the list; also how long a thread outlives its last lease."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the leases of the parent process; threads are started when they are needed."""
        self.mutex = threading.RLock()
        self._leases: dict[str, Kept] = {}
        self._servers: dict[tuple[Any, Hashable], Server] = {}

    def add(self, lease: Lease, backend: Any, lock: Any, *, renew: bool = True) -> None:
        """Renew a lease from now on, or only verify it; the reference to it is weak."""
        kept = Kept(lease, lock, renew=renew)
        with self.mutex:
            self.discard(lease)
            self._leases[kept.token] = kept
            self._server(backend, kept.name).take(kept)

    def discard(self, lease: Lease) -> None:
        """Renew a lease no more, from this instant on."""
        if lease.token not in self._leases:
            return
        with self.mutex:
            kept = self._leases.pop(lease.token, None)
            if kept is not None and kept.server is not None:
                kept.server.leases.pop(lease.token, None)

    def was_set(self, leases: Iterable[Lease], lease_ms: Iterable[int]) -> None:
        """Renew leases in time that their holder has set, or may have, to so much."""
        with self.mutex:
            for lease, ms in zip(leases, lease_ms, strict=True):
                kept = self._leases.get(lease.token)
                if kept is not None and kept.server is not None and ms > 0:
                    kept.hurry(ms / 1000)
                    kept.server.ring(kept.due)

    def withdraw(
        self, call: Withdrawing, backend: Any, seconds: float, *, at_once: bool = False
    ) -> None:
        """Send a withdrawal until it arrives, or until what it is about has passed by itself.

        An entry of the audit that did not reach the server is sent in the same way. The first
        sending is in half a second, unless it is to be ``at_once``.
        """
        match call:
            case Release():
                name = call.name
            case ReleaseMany():
                name = call.holds[0][0]
            case NoteLosses():
                name = call.entries[0]["name"]
        withdrawal = Withdrawal(call, monotonic() + seconds)
        if at_once:
            withdrawal.due = monotonic()
        with self.mutex:
            server = self._server(backend, name)
            server.withdrawals[withdrawal] = None
            server.ring(withdrawal.due)

    def note_losses(self, entries: list[audit.Fields], backend: Any) -> Generator[Step, Any, None]:
        """Write losses into the audit; whatever hinders it is nothing to the caller."""
        call = NoteLosses(entries, backend.operators.audit_entries)
        try:
            yield from ask(call)
        except Exception as error:
            if isinstance(error, LockUnavailable) and error.passing:
                self.withdraw(call, backend, NOTE_FOR)
            else:
                logger.warning("The loss of %d locks is not in the audit: %s", len(entries), error)

    def at_exit(self) -> None:
        """Try once more what could not be sent, for a second at most."""
        deadline = monotonic() + EXIT
        with self.mutex:
            owing = [server for server in self._servers.values() if server.withdrawals]
            for server in owing:
                server.hurry()
        while monotonic() < deadline and any(server.hurried for server in owing):
            time.sleep(0.005)

    def _server(self, backend: Any, name: str) -> Server:
        place = backend, backend.together(name)
        server = self._servers.get(place)
        if server is None:
            server = self._servers[place] = Server(self, *place)
        return server

    # What the threads of a server ask.

    def keeps(self, kept: Kept) -> bool:
        """Whether a lease is still on the list."""
        return self._leases.get(kept.token) is kept

    def forget(self, kept: Kept) -> bool:
        """Take a lease off the list; return whether it was on it."""
        with self.mutex:
            if not self.keeps(kept):
                return False
            del self._leases[kept.token]
            if kept.server is not None:
                kept.server.leases.pop(kept.token, None)
            return True

    def move(self, kept: Kept, backend: Any) -> None:
        """Leave a lease to the server that its lock is on by now."""
        with self.mutex:
            if self.keeps(kept) and kept.server is not None:
                kept.server.leases.pop(kept.token, None)
                self._server(backend, kept.name).take(kept)

    def close(self, server: Server) -> None:
        """Drop a server with which nothing is to be done; to be called with the mutex."""
        self._servers = {key: item for key, item in self._servers.items() if item is not server}


def set_leases(
    leases: Sequence[Lease], lease_ms: Sequence[int]
) -> Generator[Step, Any, list[Lease]]:
    """Set what is left of leases, as the protocol does, and go on renewing them in time."""
    try:
        return (yield from conversation.set_leases(leases, lease_ms))
    finally:  # for it may be carried out even if no answer came
        renewer.was_set(leases, lease_ms)


renewer = Renewer()
"""The one of this process."""
atexit.register(renewer.at_exit)
