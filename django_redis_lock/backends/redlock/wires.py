"""The connections to the servers of a quorum, on which calls are sent to all servers at once.

Each server has one connection, used by one thread alone. It sends all letters that have gathered in
one go, and reads the answers in order. So a server that is slow, paused or gone only delays its own
thread, and a caller is woken when enough servers have answered. An exception that a signal handler
raises in a caller can't put a connection out of step with its answers.

For that, callers use only bare locks. ``threading.Condition`` and ``Event`` are Python code: such
an exception within them could leave their lock taken for ever. Within ``Thread.is_alive`` it makes
a running thread count as ended, and a second one would then read its answers.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.transport.connections import leave_to_parent
from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.redis_py import BROKEN


class Letter:
    """A call to one server, and what to do with its answer."""

    __slots__ = ("owed_until", "packed", "recalled", "reply", "sendings", "sent")

    def __init__(
        self, packed: Packed, reply: Callable[[Any], object], *, owed_until: float = 0.0
    ) -> None:
        self.packed = packed
        self.reply = reply  # called with the answer, or with an exception
        self.owed_until = owed_until  # monotonic; until then it is sent again after a failure
        self.sent = False
        self.sendings = 0
        self.recalled = False

    @property
    def again(self) -> bool:
        """Whether it was sent more than once, so that an earlier sending may have succeeded."""
        return self.sendings > 1


class Wire:
    """The connection and the thread of one server. ``connect`` makes a connection, not yet open.

    ``timeout`` is the seconds for connecting, and for which a call may stay unanswered before
    further calls fail at once.
    """

    IDLE = 5.0
    """Seconds after its last call at which the thread ends."""
    STALE = 1.0
    """Seconds without use after which a connection is checked before it is used again."""
    GIVE_UP = 5.0
    """Seconds without an answer after which a connection is closed."""
    AGAIN = 0.1
    """Seconds between attempts to connect."""
    OWED_AGAIN = 0.5
    """Seconds between attempts to send owed letters, while there are no others."""
    MOST_OWED = 1000
    """How many letters are owed to a server at most. Older releases are left to the lease."""

    def __init__(self, connect: Callable[[], Any], timeout: float) -> None:
        self._connect = connect
        self._timeout = timeout
        self._connection: Any = None
        self.after_fork()
        forget_after_fork(self)
        _wires.add(self)

    def after_fork(self) -> None:
        """Leave the connection, and the letters on it, to the parent process."""
        if self._connection is not None:
            leave_to_parent(self._connection)
        self._mutex = threading.RLock()
        self._bell = threading.Lock()  # the thread waits to acquire it
        self._outbox: deque[Letter] = deque()
        self._owed: list[Letter] = []
        self._connection = None
        self._used_at = 0.0
        self._failed: tuple[float, Exception] | None = None  # the last attempt to connect
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether there are letters that were not answered yet."""
        return bool(self._outbox) or self._busy_since is not None

    def post(self, letter: Letter) -> None:
        """Send a letter as soon as possible. This wire's thread calls its ``reply``."""
        with self._mutex:
            since = self._busy_since
            late = since is not None and monotonic() - since > self._timeout
            if not late or letter.owed_until:
                self._outbox.append(letter)
                self._closing = False
                self._ring()
                return
        letter.reply(redis.exceptions.TimeoutError("It still owes earlier answers"))

    def _ring(self) -> None:
        """Wake the thread, or start one. The caller holds the mutex."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="django-redis-lock-quorum", daemon=True
            )
            # ``start`` uses an Event, so it is left to a thread that no signal handler interrupts.
            _thread.start_new_thread(self._start, (thread,))
            self._thread = thread  # if interrupted before this, ``_run`` does it
        elif self._bell.locked():
            self._bell.release()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except BaseException:
            with self._mutex:
                if self._thread is thread:
                    self._thread = None  # so that the next letter tries again
            raise

    def recall(self, letter: Letter) -> bool:
        """Do not send a letter; return False if it was sent already, or may have been."""
        with self._mutex:
            letter.recalled = True
            with contextlib.suppress(ValueError):
                self._outbox.remove(letter)
            return not letter.sent

    def close(self) -> None:
        """Send the waiting letters, and close the thread and the connection."""
        with self._mutex:
            thread = self._thread
            self._closing = True
            self._owed.clear()
            if thread is not None:
                self._ring()
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # not started yet; it ends by itself
                thread.join(self._timeout)
                connection = self._connection
                if self._thread is thread and connection is not None:
                    connection.disconnect()  # the thread waits for an answer on it
                    thread.join(self._timeout)
        elif thread is None:
            self._drop()

    def _run(self) -> None:
        me = threading.current_thread()
        with self._mutex:
            if self._thread not in (None, me):
                return  # starting it was interrupted, and another one was started
            self._thread = me
        try:
            while (letters := self._next_letters()) is not None:
                try:
                    self._exchange(letters)
                finally:
                    self._busy_since = None
        finally:
            with self._mutex:
                if self._thread is me:
                    self._thread = None

    def _next_letters(self) -> list[Letter] | None:
        """Return the letters to send next; ``None`` to end the thread."""
        began = monotonic()
        while True:
            with self._mutex:
                now = monotonic()
                owing = bool(self._owed) and not self._closing
                until = began + (self.OWED_AGAIN if owing else self.IDLE)
                if self._outbox or (owing and now >= until):
                    return self._gather(now)
                if self._closing or now >= until:
                    if self._closing:
                        self._drop()
                    self._thread = None
                    return None
            self._bell.acquire(timeout=until - now)

    def _gather(self, now: float) -> list[Letter]:
        owed = [letter for letter in self._owed if now < letter.owed_until]
        letters = [*owed, *self._outbox]
        self._busy_since = now
        self._owed = []
        self._outbox.clear()
        for letter in letters:
            letter.sent = True
        return letters

    def _exchange(self, letters: Sequence[Letter]) -> None:
        unanswered = deque(letters)
        try:
            connection = self._open()
            for with_source in (False, True):  # again with its source if the script was unknown
                if not with_source:
                    for letter in unanswered:
                        letter.sendings += 1
                commands = [item.packed.pack(with_source=with_source) for item in unanswered]
                if commands:
                    connection.send_packed_command(commands, check_health=False)
                for letter in list(unanswered):
                    answer = self._read(connection)
                    self._busy_since = monotonic()
                    unanswered.popleft()
                    if isinstance(answer, NoScriptError) and not with_source:
                        if not letter.recalled:
                            unanswered.append(letter)
                        else:
                            letter.reply(answer)
                    else:
                        letter.owed_until = 0.0
                        letter.reply(answer)
            self._used_at = monotonic()
        except BROKEN as error:
            self._drop()
            self._fail(unanswered, error)
        except BaseException as error:
            self._drop()
            self._fail(unanswered, redis.exceptions.ConnectionError(f"Interrupted: {error!r}"))
            raise

    def _fail(self, letters: Sequence[Letter], error: Exception) -> None:
        self._owed += [letter for letter in letters if letter.owed_until]
        del self._owed[: -self.MOST_OWED]
        for letter in letters:
            letter.reply(error)

    def _open(self) -> Any:
        """Return an open connection. Raises ``RedisError`` and ``OSError``."""
        connection = self._connection
        if connection is not None and monotonic() - self._used_at > self.STALE:
            try:
                stale = connection.can_read(timeout=0)
            except (RedisError, OSError):
                stale = True
            if stale:
                self._drop()
                connection = None
        if connection is None:
            if self._failed is not None and monotonic() - self._failed[0] < self.AGAIN:
                raise self._failed[1]
            connection = self._connect()
            try:
                connection.connect()
            except Exception as error:
                self._failed = monotonic(), error
                raise
            self._failed = None
            self._connection = connection
        return connection

    def _read(self, connection: Any) -> Any:
        try:
            if not connection.can_read(timeout=max(self.GIVE_UP, self._timeout)):
                raise redis.exceptions.TimeoutError("Timeout reading from the server")
            return connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Let releases be sent before the process exits; for half a second at most."""
    deadline = monotonic() + 0.5
    while monotonic() < deadline and any(wire.busy for wire in list(_wires)):
        time.sleep(0.005)
