"""Commands and programs that run while a lock is held, and the signals that end them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from types import FrameType
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, lock
from django_redis_lock.management.output import Backends, Terminal, usage
from django_redis_lock.primitives.held import register
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.signals import lock_lost
from django_redis_lock.support.arguments import DEFAULT, Default, check_template
from django_redis_lock.support.process import state_of
from django_redis_lock.support.text import escape_unprintable

__all__ = ["LockedCommand"]

logger = logging.getLogger("django_redis_lock")
UNAVAILABLE, BUSY, LOST = 69, 75, 76
"""Exit codes: the server is unavailable; another caller holds it (EX_TEMPFAIL of
sysexits.h, as other programs use it); the lock was lost while the command ran."""
HELD = "DJANGO_REDIS_LOCK_HELD"  # the token ids of the locks that are held around a program
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a program, which leaves its locks locked until their leases end."""
HANDLED = (*ENDING, "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP")
"""Signals that are passed on, except Ctrl-Z: a process that is stopped renews no lease."""


class LockedCommand(BaseCommand):
    """A management command that runs once at a time across all hosts.

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
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} must set lock_name.")
        check_template(self.lock_name, "lock_name")
        try:
            name = self.lock_name.format_map(options)
        except (LookupError, ValueError, AttributeError) as error:
            why = f"lock_name={self.lock_name!r} contains a field that isn't an option: {error}"
            raise usage(why) from error
        self.lock = make_lock(name, self.lock_timeout, self.lock_wait, self.lock_using)
        with signals_to(end, ENDING), holding(self.lock, "this command"):
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
        raise usage(str(error)) from error
    return handle


@contextmanager
def holding(handle: Lock, who: str) -> Iterator[None]:
    """Hold a lock in the block. Raises ``CommandError`` if it is not held until the end."""
    name, ended = escape_unprintable(handle.name), False
    try:
        _acquire(handle, name, who)
        yield
        ended = True
    finally:
        try:
            handle.release()
        except LockLost as error:
            if ended:
                why = f"Lost lock {name!r} while {who} ran."
                raise CommandError(why, returncode=LOST) from error
        except LockNotOwned:
            pass  # it was not acquired
        except LockUnavailable as error:
            text = "Could not release lock %r; it stays locked until its lease ends: %s"
            logger.warning(text, handle.name, error)


def _acquire(handle: Lock, name: str, who: str) -> None:
    around = os.environ.get(HELD, "").split()
    try:
        holder = handle.backend.holder(handle.name) if around else None
        nested = holder is not None and holder.token_id in around
        if not nested and handle.acquire():
            return
        holder = handle.backend.holder(handle.name)
    except LockUnavailable as error:
        doctor = f"manage.py locks doctor --using {escape_unprintable(handle.backend.alias)}"
        text = f"Could not run {who}: {str(error).rstrip('.')}. To find the cause, run: {doctor}"
        raise CommandError(text, returncode=UNAVAILABLE) from error
    except LockError as error:
        why = f"Could not run {who}: {error}"  # as of another program's data
        if register.held_here(handle.name):
            why = f"Deadlock: this thread already holds lock {name!r}, so {who} did not run."
        raise CommandError(why, returncode=BUSY) from error
    by = str(holder) if holder else "another caller"
    if holder and holder.acquired_at:
        by += f" since {holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC"
    by += ", which started this process and waits for it" * nested
    raise CommandError(f"Lock {name!r} is held by {by}, so {who} did not run.", returncode=BUSY)


def end(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: end by an exception, which no second such signal interrupts."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
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


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Run the program with the lock held, and exit with its code."""
    words = options["program"]
    if not words:
        raise usage("No program given. Usage: locks run NAME -- PROGRAM [ARGUMENT ...]")
    using = DEFAULT_ALIAS if options["using"] is None else options["using"]
    handle = make_lock(options["name"], options["timeout"], options["wait"], using)
    Backends(using, terminal)  # says if it excludes no other process
    program = Program(words, handle, options["grace"], terminal)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the system would forget the exit code
    with signals_to(program.on_signal, HANDLED), holding(handle, escape_unprintable(words[0])):
        code = program.run()
    if code:
        sys.exit(code)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process once it has ended.

    A blocking wait would keep a signal that comes just before it from its handler.
    """
    waiting = threading.Thread(target=process.wait, name="django-redis-lock-run", daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(0.5)
    return process.wait()


def _runs(group: int) -> bool:
    """Whether a process of a group runs. A zombie, which no other has collected yet, does not."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass  # process 1 inherits them
    os.killpg(group, 0)
    if state_of(os.getpid()) == "?":  # without /proc
        return True
    states = []
    for _poll in range(2):  # a process may fork after the first look, and end
        for each in filter(str.isdigit, os.listdir("/proc")):
            with suppress(ProcessLookupError):
                if os.getpgid(int(each)) == group:
                    states.append(state_of(int(each)))
    return any(states) or not states  # hidepid may hide all of them


class Program:
    """A program that runs in a session, and so in a process group, of its own."""

    def __init__(self, words: list[str], handle: Lock, grace: float, terminal: Terminal) -> None:
        self._words, self._handle, self._grace, self._terminal = words, handle, grace, terminal
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._signalled = False, False
        self._due: deque[int] = deque()  # signals that it gets once it has started
        self._killer = threading.Timer(grace, self._send, [signal.SIGKILL])
        self._killer.daemon = True
        lock_lost.connect(self._on_lost)  # before the lock is acquired, to miss no loss

    def run(self) -> int:
        """Run it, and return its exit code, or 128 and the number of the signal that ended it."""
        self._starts = True
        held, fence = f"{os.environ.get(HELD, '')} {self._handle.token_id}", str(self._handle.fence)
        environment = {**os.environ, "DJANGO_REDIS_LOCK_FENCE": fence, HELD: held}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the operator has given
                self._words, env=environment, start_new_session=True
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as of a shell
            text = f"Could not run {escape_unprintable(self._words[0])}: {error.strerror}."
            raise CommandError(text, returncode=code) from error
        self._send()
        code = _wait(self._process)
        until = monotonic() + self._grace * self._signalled
        with suppress(ProcessLookupError, PermissionError):
            while (monotonic() < until or self._killer.is_alive()) and _runs(self._process.pid):
                sleep(0.05)
        lock_lost.disconnect(self._on_lost)
        self._killer.cancel()
        return 128 - code if code < 0 else code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on, or give up the wait for the lock."""
        if number == getattr(signal, "SIGTSTP", None):
            return
        if not self._starts:
            end(number, frame)
        self._send(number)

    def _on_lost(self, lock: Any, **kwargs: Any) -> None:
        if lock is self._handle:
            self._killer.start()
            self._send(signal.SIGTERM)
            name, what = escape_unprintable(lock.name), escape_unprintable(self._words[0])
            self._terminal.notice(f"Lost lock {name!r}; sent SIGTERM to {what}.")

    def _send(self, *numbers: int) -> None:
        """Send signals to the process group, with those that came before it was started."""
        self._signalled |= bool(numbers)
        self._due += numbers
        with suppress(ProcessLookupError, PermissionError, IndexError):
            while self._process is not None:
                os.killpg(self._process.pid, self._due.popleft())
