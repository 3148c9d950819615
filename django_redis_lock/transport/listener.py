"""Receives the grants of this process over one connection, however many waiters it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import Any

from django_redis_lock.protocol.waiting import Grant
from django_redis_lock.transport.connections import leave_to_parent
from django_redis_lock.transport.leading import LeadingHub
from django_redis_lock.transport.redis_py import BROKEN

SILENCE = 10.0
"""Seconds without a message after which the server is asked for one."""
ANSWER_WITHIN = 5.0
"""Seconds within which it must answer; otherwise the connection is replaced."""

_GRANT = re.compile(rb"grant ([!-~]+) (\d{1,16}) (\d{1,16}) (\d{1,16}) (.+)", re.DOTALL)
"""What a script publishes. Other programs may publish anything, which is ignored."""


class Liveness:
    """Finds out whether a listening connection is still alive.

    A connection can die silently, for example if a router forgets it.
    """

    def __init__(self) -> None:
        self._heard_at = monotonic()
        self._asked_at = 0.0

    def heard(self) -> None:
        """Note that a message came."""
        self._heard_at = monotonic()

    def patience(self, ask: Callable[[], object]) -> float:
        """Return how many seconds of silence are normal, after calling ``ask`` if that was long.

        Raises ``OSError`` if the server did not answer.
        """
        now = monotonic()
        if now - self._heard_at < SILENCE:
            return self._heard_at + SILENCE - now
        if self._asked_at < self._heard_at:
            ask()
            self._asked_at = now
        if now - self._asked_at > ANSWER_WITHIN:
            raise OSError(f"nothing heard for {now - self._heard_at:.0f} s")
        return max(0.001, self._asked_at + ANSWER_WITHIN - now)


class Listener(LeadingHub):
    """A hub that receives its grants by pub/sub.

    ``connect`` makes a connection that is not open yet. ``give_back`` is called with the name, the
    token and the remaining lease (seconds) of a lock that was granted to a waiter who has left.
    With ``confirming`` a grant only makes its waiter look, and the answer to that counts.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        prefix: str,
        give_back: Callable[[str, str, float], object],
        *,
        confirming: bool = False,
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        self._give_back = give_back
        self._confirming = confirming
        self.takes_back = not confirming
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._connection: Any = None
        self._interrupted: list[Any] = []  # connections that an exception struck while reading
        self._liveness = Liveness()

    @property
    def channel(self) -> str:
        """The channel of this process."""
        return f"{self._prefix}:{super().channel}"

    @property
    def listening(self) -> bool:
        """Whether the channel is subscribed."""
        return self._connection is not None

    def _dial(self, name: str) -> Any:
        connection = self._connect()
        try:
            connection.connect()
            self._introduce(connection)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _introduce(self, connection: Any) -> None:
        connection.send_command("SUBSCRIBE", self.channel)
        connection.read_response(disable_decoding=True)

    def _adopt(self, connection: Any) -> None:
        if self._connection is not None:  # a signal handler has connected meanwhile
            connection.disconnect()
            return
        self._liveness = Liveness()
        self._connection = connection
        self._connected.set()  # before anything else, which a signal's exception may interrupt
        self._disconnect_interrupted()

    def _leave_to_parent(self) -> None:
        for connection in (self._connection, *self._interrupted):
            if connection is not None:
                leave_to_parent(connection)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._drop(self._connection)
        self._disconnect_interrupted()

    def _hear(self, seconds: float) -> bool:
        connection = self._connection
        if connection is None:
            return False
        try:
            self._receive(connection, seconds)
        except BROKEN:
            self._drop(connection)
        except BaseException:
            # Possibly interrupted in the middle of a message, so the next can't be told apart.
            self._abandon(connection)
            raise
        return True

    def _receive(self, connection: Any, seconds: float) -> None:
        def ask() -> None:
            # Subscribing again changes nothing, and needs no further permission.
            connection.send_command("SUBSCRIBE", self.channel, check_health=False)

        if connection.can_read(timeout=min(seconds, self._liveness.patience(ask))):
            self._liveness.heard()
            message = connection.read_response(disable_decoding=True)
            if message[0] == b"message":
                self._take_in(message[2])

    def _take_in(self, message: bytes) -> None:
        if grant := _GRANT.fullmatch(message):
            token, name = grant[1].decode(), grant[5].decode(errors="replace")
            news = Grant(int(grant[2]), int(grant[3]), int(grant[4]))
            known = self.nudge_one(token) if self._confirming else self.dispatch(token, news)
            if not known:
                self._give_back(name, token, news.lease_ms / 1000)
        elif message.startswith(b"look "):
            self.look_soon(message[5:].decode(errors="replace"))

    def _drop(self, connection: Any) -> None:
        self._turn_from(connection)
        connection.disconnect()

    def _abandon(self, connection: Any) -> None:
        """Stop reading from a connection, but keep it open until there is another.

        Waiters keep their places in the queue only while the channel has a subscriber. They find
        the grants that this one receives by looking.
        """
        self._interrupted.append(connection)
        self._turn_from(connection)

    def _disconnect_interrupted(self) -> None:
        while self._interrupted:
            self._interrupted.pop().disconnect()

    def _turn_from(self, connection: Any) -> None:
        """Stop reading from a connection. Grants may be lost, so all waiters have to look."""
        if self._connection is connection:
            self._connection = None
            self._connected.clear()
        self.nudge()
