"""Signals about locks, for metrics and logs.

Each is sent with ``sender`` (the class of the backend), ``using`` (its alias) and ``name``.
Receivers are called with ``send_robust``: Django logs a receiver that fails, and the lock is not
affected. Asyncio code awaits them with ``asend_robust``.
"""

from django.dispatch import Signal

lock_acquired = Signal()
"""A lock was acquired. Also given: ``lock``, and ``waited`` in seconds."""

lock_not_acquired = Signal()
"""A lock was not acquired in time.

Also given: ``lock``; ``waited`` in seconds; and ``reason``, ``"timeout"`` if the wait ran out, or
``"busy"`` if there was none.
"""

lock_released = Signal()
"""A holder released its lock. Also given: ``lock``, and ``held_for`` in seconds."""

lock_lost = Signal()
"""A holder lost its lock. Also given: ``lock``, or ``None`` if the handle no longer exists.

Sent once for each loss, from the thread that noticed it: often the renewal thread.
"""

lock_force_released = Signal()
"""A lock was taken from its holder with ``force_release()``.

Also given: ``holder``, a ``Holder``; ``held_for`` in seconds by the server's clock, ``None`` for a
lock of another program; and ``by`` and ``reason`` as passed to ``force_release()``.
"""

lock_freed = Signal()
"""A Celery worker freed the lock of a killed task or of a dropped message.

Also given: ``holder``, ``held_for`` and ``reason``, as with ``lock_force_released``. The holder of
a message's lock is its sender.
"""

lock_unavailable = Signal()
"""An operation failed because the server was unavailable. Also given: ``error``.

Sent once for each operation that raises ``LockUnavailable``, however often it was tried; for each
renewal of leases that fails; and for a release after a transaction that has to be retried.
``name`` is empty if the operation is not about one lock.
"""
