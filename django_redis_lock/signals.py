"""Signals about locks, for metrics and logs.

Each is sent with ``sender`` (the class of the backend), ``using`` (its alias) and ``name``. A
receiver that fails is logged, and the lock is not affected. They are sent by ``send_robust``, in
asyncio code by ``asend_robust``, unless ``never_blocks`` marks all receivers.
"""

from collections.abc import Callable
from inspect import ismethod
from typing import Any, TypeVar

from django.dispatch import Signal

Receiver = TypeVar("Receiver", bound=Callable[..., Any])


def never_blocks(receiver: Receiver) -> Receiver:
    """Mark a receiver that only counts: asyncio code may call it in the event loop's thread.

    Django runs others in a second thread, which takes longer than acquiring the lock.
    """
    receiver.never_blocks = True  # type: ignore[attr-defined]
    return receiver


class LockSignal(Signal):
    """A signal that knows whether one of its receivers may block.

    If none may, they are called in place. Django's methods take several times as long.
    """

    def __init__(self) -> None:
        super().__init__(use_caching=True)
        self.quick: tuple[Callable[..., Any], ...] = ()  # the receivers that never block

    @property
    def may_block(self) -> bool:
        return len(self.receivers) > len(self.quick)

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: Any = None,
        weak: bool = True,
        dispatch_uid: Any = None,
    ) -> None:
        super().connect(receiver, sender, weak, dispatch_uid)
        # Without a uid, by which it could be disconnected unnamed. Only Django's list knows when a
        # weak method goes with its object.
        plain = sender is None and dispatch_uid is None and not (weak and ismethod(receiver))
        if getattr(receiver, "never_blocks", False) and plain:
            self.quick = (*(each for each in self.quick if each != receiver), receiver)

    def disconnect(self, receiver: Any = None, *args: Any, **kwargs: Any) -> bool:
        found = super().disconnect(receiver, *args, **kwargs)
        if found:
            self.quick = tuple(each for each in self.quick if each != receiver)
        return found


lock_acquired = LockSignal()
"""A lock was acquired. Also given: ``lock``, and ``waited`` in seconds."""

lock_not_acquired = LockSignal()
"""A lock was not acquired. Also given: ``lock``; ``waited`` in seconds; and ``reason``:
``"timeout"`` if the wait ended, ``"busy"`` without a wait, ``"full"`` if ``max_waiters`` callers
waited, or ``"unavailable"`` if the server was."""

lock_released = LockSignal()
"""A holder released its lock. Also given: ``lock``, and ``held_for`` in seconds."""

lock_lost = LockSignal()
"""A holder lost its lock. Also given: ``lock``, or ``None`` if the handle no longer exists. Sent
once for each loss, from the thread that noticed it: often the renewal thread."""

lock_force_released = LockSignal()
"""A lock was force-released. Also given: ``holder``, a ``Holder``;
``held_for`` in seconds by the server's clock, ``None`` for a lock of another program; and ``by``
and ``reason`` as passed to ``force_release()``."""

lock_freed = LockSignal()
"""A Celery worker freed the lock of a killed task or of a dropped message. Also given: ``holder``,
``held_for`` and ``reason``, as with ``lock_force_released``. The holder of a message is its
sender."""

lock_unavailable = LockSignal()
"""An operation failed because the server was unavailable. Also given: ``error``. Sent once for each
operation that raises ``LockUnavailable``, however often it was tried; for each renewal of leases
that fails; and for a release after a transaction that has to be retried. ``name`` is empty if the
operation is not about one lock."""

lock_waiting = LockSignal()
"""A lock was held, and the caller has joined its queue. Also given: ``lock``. Sent once for
each wait. The lock may be handed off meanwhile, so a receiver has to be quick."""

lock_detached = LockSignal()
"""A holder detached its lock, so another handle can take it over. Also given: ``lock``, and
``held_for`` in seconds."""
