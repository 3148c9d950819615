"""Receives the grants of this process from a list, for servers whose channels can't be used."""

from __future__ import annotations

from time import monotonic

from django_redis_lock.transport.receiving import ANSWER_WITHIN, NOTHING, Messages, Subscription

ROUND = 2.0
"""Seconds for which one BLPOP blocks."""
ALIVE_MS = 5000
"""Milliseconds after its last sign of life at which a process counts as dead."""


class PoppedList(Subscription):
    """Receives what scripts push to a list, with BLPOP.

    A push does not tell whether anyone pops, so a process refreshes an expiring key while it does.
    That makes two commands each round, and none while there are no waiters. The list is gone when
    its last message was popped, and both keys expire if the process dies.
    """

    def reset(self) -> None:
        super().reset()
        self._asked_until: float | None = None  # when the last BLPOP should have been answered
        self._distrust: float | None = None  # until when a dropped connection may still pop

    @property
    def list_key(self) -> str:
        """The list of this process."""
        return super().channel_of("")

    def channel_of(self, name: str) -> str:
        return f"@list:{self.list_key}"

    def _introduce(self, messages: Messages) -> None:
        messages.connection.send_command(*self._sign_of_life)
        messages.read()
        self._asked_until = None

    @property
    def _sign_of_life(self) -> tuple[str, ...]:
        # All items are text: hiredis can crash if a signal interrupts it while it packs a number.
        return "SET", f"{self.list_key}:alive", "", "PX", str(ALIVE_MS)

    def _receive(self, messages: Messages, seconds: float) -> None:
        if self._distrust is not None and monotonic() > self._distrust:
            self._distrust = None
            self.hub.notify_all()
        if self._asked_until is None:
            self._asked_until = monotonic() + ROUND
            connection = messages.connection
            connection.send_command(*self._sign_of_life, check_health=False)
            connection.send_command("BLPOP", self.list_key, str(ROUND), check_health=False)
        patience = self._asked_until + ANSWER_WITHIN - monotonic()
        answer = messages.wait(min(seconds, max(0.001, patience)))
        if answer is NOTHING:
            if patience <= 0:
                raise OSError(f"nothing received for {ROUND + ANSWER_WITHIN:.0f} s")
        elif answer != b"OK":  # the answer to the sign of life
            self._asked_until = None
            if answer is not None:
                self.hub.take_in(answer[1])

    def _abandon(self, messages: Messages) -> None:
        self._drop(messages)  # if left open it would go on popping messages

    def _drop(self, messages: Messages) -> None:
        """Close a connection; until its BLPOP ends the server may pop one more message for it."""
        self._distrust = monotonic() + ROUND
        super()._drop(messages)
