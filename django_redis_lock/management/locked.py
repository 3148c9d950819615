"""Commands that hold a lock while they run, and the signals that end them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.handler import lock
from django_redis_lock.primitives.held import register
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.arguments import DEFAULT, Default
from django_redis_lock.support.text import visible

logger = logging.getLogger("django_redis_lock")
USAGE, UNAVAILABLE, BUSY, LOST = 2, 69, 75, 76
"""Exit codes: wrong arguments; the server is unavailable; another has the lock (EX_TEMPFAIL of
sysexits.h, as other programs use it); the lock was lost while the command ran."""
HELD = "DJANGO_REDIS_LOCK_HELD"  # the token ids of the locks that are held around a program
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a program, which leaves its locks locked until their leases end."""


class LockedCommand(BaseCommand):
    """A management command of which one instance runs at a time, on all hosts.

    A second one exits with code 75 and names the holder. SIGTERM, SIGHUP and Ctrl-C end the
    command by an exception, so that its lock is released.
    """

    lock_name = ""
    """The name of the lock, with options of the command in it, such as ``"import:{shop_id}"``."""
    lock_timeout: float | Default | None = DEFAULT
    """The lease in seconds, which is renewed; by default that of the alias."""
    lock_wait: float | None = 0
    """For how many seconds to wait for the lock; ``None`` waits without limit."""
    lock_using = "default"
    """An alias of LOCKS."""
    lock: Lock
    """The lock, while the command runs: for its ``fence`` and ``ensure_held()``."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command while the lock is held. Raises ``CommandError`` if it is held already."""
        if not self.lock_name:
            kind = type(self)
            raise TypeError(f"Set lock_name in {kind.__module__}.{kind.__qualname__}.")
        try:
            name = self.lock_name.format_map(options)
        except (LookupError, ValueError, AttributeError) as error:
            why = f"lock_name={self.lock_name!r} has a field that is no option: {error}"
            raise CommandError(why, returncode=USAGE) from error
        self.lock = make_lock(name, self.lock_timeout, self.lock_wait, self.lock_using)
        with signals_to(end, ENDING), holding(self.lock, "This command"):
            return super().execute(*args, **options)


def make_lock(
    name: str, timeout: float | Default | None, wait: float | Default | None, using: str
) -> Lock:
    """Return a handle whose lease is renewed. Raises ``CommandError`` for wrong arguments."""
    renewed = None if timeout is None or isinstance(timeout, Default) else True
    try:
        handle = lock(name, timeout, auto_renew=renewed, blocking_timeout=wait, using=using)
        handle.backend  # noqa: B018 - an alias that is unknown, or has wrong settings
    except (TypeError, ValueError, ImproperlyConfigured) as error:
        raise CommandError(str(error), returncode=USAGE) from error
    return handle


@contextlib.contextmanager
def holding(handle: Lock, who: str) -> Iterator[None]:
    """Hold a lock in the block. Raises ``CommandError`` if it is not held until the end."""
    name, ended = visible(handle.name), False
    try:
        _acquire(handle, name, who)
        yield
        ended = True
    finally:
        try:
            handle.release()
        except LockLost as error:
            if ended:
                why = f"{who} lost lock {name!r} while it ran."
                raise CommandError(why, returncode=LOST) from error
        except LockNotOwned:
            pass  # it was not acquired
        except LockUnavailable as error:
            logger.warning("Lock %r is free when its lease ends: %s", handle.name, error)


def _acquire(handle: Lock, name: str, who: str) -> None:
    around = os.environ.get(HELD, "").split()
    try:
        holder = handle.backend.holder(handle.name) if around else None
        nested = holder is not None and holder.token_id in around
        if not nested and handle.acquire():
            return
        holder = handle.backend.holder(handle.name)
    except LockUnavailable as error:
        raise CommandError(f"{error} {who} did not run.", returncode=UNAVAILABLE) from error
    except LockError as error:
        own = f"This thread holds lock {name!r}, and would wait for itself."
        why = own if register.held_here(handle.name) else str(error)  # as of another program's data
        raise CommandError(f"{why} {who} did not run.", returncode=BUSY) from error
    by = str(holder) if holder else "another"
    if holder and holder.acquired_at:
        by += f" since {holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC"
    by += ", which started this and waits for its end" * nested
    raise CommandError(f"Lock {name!r} is held by {by}. {who} did not run.", returncode=BUSY)


def end(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: end by an exception, which no second such signal interrupts."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def signals_to(
    handler: Callable[[int, FrameType | None], object], names: Iterable[str]
) -> Iterator[None]:
    """Handle signals in the block, except those that this process was started to ignore.

    Only a main thread can, so the block of another does without.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name, None) for name in names):
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
