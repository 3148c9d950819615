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
"""A lock was taken from its holder by an operator.

Also given: ``holder``, a ``Holder``, and ``by`` and ``reason`` as the operator gave them.
"""
