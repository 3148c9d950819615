"""Signals that tell of locks, for metrics and audits.

Each is sent with ``sender`` (the backend's class), ``using`` (its alias) and ``name``. Receivers
are called with ``send_robust``: one that fails is logged by Django and changes nothing for the
lock. Inside asyncio code they are awaited with ``asend_robust``.
"""

from django.dispatch import Signal

lock_acquired = Signal()
"""A lock was acquired. Also given: ``lock``, and ``waited`` in seconds."""

lock_not_acquired = Signal()
"""A wait ran out, or there was none. Also given: ``lock``, and ``waited`` in seconds."""

lock_released = Signal()
"""A holder released its lock. Also given: ``lock``, and ``held_for`` in seconds."""

lock_lost = Signal()
"""A holder found that it holds its lock no longer. Also given: ``lock``, ``None`` when it is gone.

Sent once a lease, from the thread that found out: often the renewal thread.
"""

lock_force_released = Signal()
"""A lock was taken from its holder with ``force_release()``, as operators do.

Also given: ``holder``, a ``Holder``; ``held_for`` in seconds by the server's clock, ``None`` for a
lock of a foreign program; and ``by`` and ``reason`` as given to ``force_release()``.
"""

lock_freed = Signal()
"""A Celery worker freed the lock of a task that was killed, or of a message that it dropped.

Also given: ``holder``, ``held_for`` and ``reason``, as with ``lock_force_released``. The holder of
a message's lock is whoever sent it.
"""

lock_unavailable = Signal()
"""An operation ended because the server could not be asked. Also given: ``error``.

Sent once for each operation whose caller gets the ``LockUnavailable``, however often it was tried;
for each renewal of leases that fails; and for a release after a transaction that has to be tried
again. ``name`` is empty where it is not about one lock.
"""
