"""Receives the grants of this process from a list, for servers whose channels can't be used."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

from django_redis_lock.protocol.waiting import LocalWaiter
from django_redis_lock.transport.listener import ANSWER_WITHIN, Listener

ROUND = 2.0
"""Seconds for which one BLPOP blocks."""
ALIVE_MS = 5000
"""Milliseconds after its last sign of life at which a process counts as dead."""


class Popper(Listener):
    """A listener that pops its messages from a list with BLPOP.

    A push does not tell whether anyone pops, so a process refreshes an expiring key while it does.
    That makes two commands each round, and none while there are no waiters. The list is gone when
    its last message was popped, and both keys expire if the process dies.
    """

    def _reset(self) -> None:
        super()._reset()
        self._asked_until: float | None = None  # when the last BLPOP should have been answered
        self._distrust: float | None = None  # until when a dropped connection may still pop
        self._wanted = threading.Event()  # for the thread: there are waiters

    @property
    def list_key(self) -> str:
        """The list of this process."""
        return super().channel

    @property
    def channel(self) -> str:
        """What tells scripts to push grants to the list."""
        return f"@list:{self.list_key}"

    def join(self, waiter: LocalWaiter) -> None:
        """Expect a grant for the waiter."""
        super().join(waiter)
        self._wanted.set()

    def close(self) -> None:
        """Close the connection. Waiters open another, which the last of them closes."""
        super().close()
        self._wanted.set()

    def _introduce(self, connection: Any) -> None:
        connection.send_command(*self._sign_of_life)
        connection.read_response(disable_decoding=True)
        self._asked_until = None

    @property
    def _sign_of_life(self) -> tuple[str, ...]:
        # All items are text: hiredis can crash if a signal interrupts it while it packs a number.
        return "SET", f"{self.list_key}:alive", "", "PX", str(ALIVE_MS)

    def _rest(self) -> None:
        with self._mutex:
            if not self._waiters and not self._closed:
                self._wanted.clear()
        self._wanted.wait()

    def _worth_leading(self) -> bool:
        return bool(self._waiters)

    def _receive(self, connection: Any, seconds: float) -> None:
        if self._distrust is not None and monotonic() > self._distrust:
            self._distrust = None
            self.nudge()
        if self._asked_until is None:
            self._asked_until = monotonic() + ROUND
            connection.send_command(*self._sign_of_life, check_health=False)
            connection.send_command("BLPOP", self.list_key, str(ROUND), check_health=False)
        patience = self._asked_until + ANSWER_WITHIN - monotonic()
        if connection.can_read(timeout=min(seconds, max(0.001, patience))):
            answer = connection.read_response(disable_decoding=True)
            if answer != b"OK":  # the answer to the sign of life
                self._asked_until = None
            if isinstance(answer, list):
                self._take_in(answer[1])
        elif patience <= 0:
            raise OSError(f"nothing heard for {ROUND + ANSWER_WITHIN:.0f} s")

    def _abandon(self, connection: Any) -> None:
        self._drop(connection)  # if kept open it would go on popping messages

    def _drop(self, connection: Any) -> None:
        """Close a connection; until its BLPOP ends the server may pop one more message for it."""
        self._distrust = monotonic() + ROUND
        super()._drop(connection)
