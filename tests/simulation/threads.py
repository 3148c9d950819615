"""Virtual threads: greenlets that a scheduler runs one at a time, on a virtual clock.
``threading``, ``_thread`` and ``time`` of the package are replaced by what is here. So its own code
blocks, wakes and starts threads as ever, and the order of it all is the scheduler's choice."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Self

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Unwinds the threads of a process that was killed."""


class Machine:
    """The clock, and the threads that are ready to run."""

    def __init__(self, entered: Callable[[Any], object] = lambda process: None) -> None:
        self.now = 1000.0
        """What the monotonic clocks read, in seconds."""
        self.ready: list[Thread] = []
        self.asleep: list[Thread] = []
        self.scheduler = getcurrent()
        self._entered = entered  # called with the process whose thread is about to run

    def block(self, until: float | None = None) -> bool:
        """Block the running thread until it is woken; return False if ``until`` has come first."""
        thread: Thread = getcurrent()
        if thread.process.dead:
            raise Killed
        thread.woken, thread.until = False, until
        self.asleep.append(thread)
        with _outside_the_loop():
            self.scheduler.switch()
        if thread.process.dead:
            raise Killed
        return thread.woken

    def wake(self, thread: Thread) -> None:
        if thread in self.asleep:
            self.asleep.remove(thread)
            thread.woken = True
            self.ready.append(thread)

    def read_clock(self) -> float:
        """Return the time. It moves on while code runs, if only a little."""
        self.now += 1e-7
        return self.now

    def expire(self) -> None:
        now = self.now
        due = [item for item in self.asleep if item.until is not None and item.until <= now]
        for thread in due:
            self.asleep.remove(thread)
            self.ready.append(thread)

    def next_due(self) -> float | None:
        """Return when the first thread wakes by itself; those of stopped processes count, too."""
        return min([item.until for item in self.asleep if item.until is not None], default=None)

    def run(self, thread: Thread) -> None:
        self.ready.remove(thread)
        self._entered(thread.process)
        thread.switch()

    def interrupt(self, thread: Thread, error: BaseException) -> None:
        (self.asleep if thread in self.asleep else self.ready).remove(thread)
        self._entered(thread.process)
        if not thread:  # it has not begun, so there is nothing to interrupt
            thread.run = lambda: None
            thread.switch()
        else:
            thread.throw(error)

    def kill(self, process: Any) -> None:
        """End all threads of a process; nothing that they still do has any effect."""
        process.dead = True
        while victims := [item for item in (*self.asleep, *self.ready) if item.process is process]:
            with contextlib.suppress(Exception):  # whatever a dead process still does
                self.interrupt(victims[0], Killed())


@contextlib.contextmanager
def _outside_the_loop() -> Iterator[None]:
    """Hide the running event loop, of which there is one in each real thread."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    hooks = sys.get_asyncgen_hooks()
    asyncio._set_running_loop(None)
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(*hooks)


machine = Machine()


def new_machine(entered: Callable[[Any], object]) -> Machine:
    global machine  # noqa: PLW0603 - there is one at a time
    machine = Machine(entered)
    virtual_time.monotonic = machine.read_clock
    return machine


class Thread(greenlet):
    """A thread, as ``threading`` has it. Its process is that of the thread which made it."""

    interruption: BaseException | None = None
    """What it was interrupted with in the middle of an operation."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "",
        args: Sequence[Any] = (),
        daemon: bool = False,
        process: Any = None,
    ) -> None:
        super().__init__(self._bootstrap, machine.scheduler)
        self.name = name
        self.process = process or getcurrent().process
        self.until: float | None = None
        self.woken = False
        self._target = target
        self._args = args

    def start(self) -> None:
        """Let it run, when the scheduler chooses so; never in a process that is dead."""
        if not self.process.dead:
            self.woken = True
            machine.ready.append(self)

    @property
    def blocked(self) -> bool:
        return self in machine.asleep

    def interrupt(self, error: BaseException, first: Callable[[], object]) -> None:
        first()
        self.interruption = error
        machine.interrupt(self, error)

    def sleep(self, seconds: float) -> None:
        machine.block(machine.now + max(0.0, seconds))

    def _bootstrap(self) -> None:
        with contextlib.suppress(Killed):
            if not self.process.dead:
                self._target(*self._args)


def start_new_thread(function: Callable[..., object], args: tuple[Any, ...]) -> None:
    Thread(function, args=args).start()


class Lock:
    """A bare lock. Whoever waits for it gets it in order of arrival."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._taken:
            self._taken = True
            return True
        if not blocking:
            return False
        thread = getcurrent()
        self._waiting.append(thread)
        try:
            return machine.block(None if timeout < 0 else machine.now + timeout)
        except BaseException:
            if thread not in self._waiting and self._taken:  # it was given just before
                self.release()
            raise
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)

    def release(self) -> None:
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        for thread in self._waiting:
            if thread in machine.asleep:  # else its time is up, or it was interrupted
                self._waiting.remove(thread)
                machine.wake(thread)
                return
        self._taken = False

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """A lock that its owner may take again."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._count = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        me = getcurrent()
        if self._owner is not me:
            self._lock.acquire()
            self._owner = me
        self._count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()


virtual_threading = SimpleNamespace(
    Lock=Lock,
    RLock=RLock,
    Thread=Thread,
    current_thread=getcurrent,
    main_thread=lambda: SimpleNamespace(name="main", ident=id(getcurrent())),
    local=threading.local,
)
virtual_thread = SimpleNamespace(start_new_thread=start_new_thread)
virtual_time = SimpleNamespace(
    monotonic=machine.read_clock,
    sleep=lambda seconds: getcurrent().sleep(seconds),
    time_ns=lambda: round(machine.now * 1e9),
)
