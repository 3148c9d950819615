"""Who this process is: what a holder record says of it, and what a fork makes anew."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from os import getpid
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class Process:
    """One process; a forked child gets another, so leases and channels are never shared."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.pid = getpid()
        self.host = socket.gethostname()
        self.pid_space = pid_space()
        self._local = threading.local()

    def record(self) -> str:
        """Return the opening of a holder's JSON record: host, pid and thread, no closing brace."""
        try:
            opening: str = self._local.record
        except AttributeError:
            fields = {"host": self.host, "pid": self.pid, "thread": threading.current_thread().name}
            if self.pid_space:
                fields["pid_space"] = self.pid_space
            opening = self._local.record = json.dumps(fields, separators=(",", ":"))[:-1]
        return opening


def pid_space() -> str:
    """Return what stands for the processes that this one's number is counted among.

    Containers that share a host name differ in it. It is empty where that can't be known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        inode = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # a system without /proc
        return ""
    return hashlib.sha256(f"{boot} {inode}".encode()).hexdigest()[:8]


_process = Process()
_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()
_begun: dict[int, threading.RLock] = {}  # by process: held while a child begins
_inherited: list[Any] = []


def current_process() -> Process:
    """Return the identity of the running process.

    In a child that was forked behind Python's back, as uWSGI forks its workers, it makes anew what
    no fork hook has. So every operation asks for it first, with no mutex held.
    """
    process = _process
    return process if process.pid == getpid() else _begin()


def known_process() -> Process:
    """Return what ``current_process`` said last, for use within an operation. No system call."""
    return _process


def forget_after_fork(resource: Any) -> None:
    """Call ``resource.after_fork()`` in every child forked from here on, while it lives."""
    current_process()  # another thread may be going through them
    _after_fork.add(resource)


def keep_inherited(things: Any) -> None:
    """Keep what tasks of the parent's event loops wait on from being collected in this child.

    Collected, a task would tidy up here what it began in the parent, and a connection would leave
    the epoll set, which parent and child share: the parent would hear of it no more.
    """
    _inherited.append(things)


class _Thread(threading.local):
    """One thread or greenlet, for as long as it lives."""

    def __init__(self) -> None:
        self.identity = _Identity()


class _Identity:
    """Unlike a thread's number it is not given to a later thread while somebody refers to it."""

    __slots__ = ("__weakref__",)


_thread = _Thread()


def current_execution() -> object:
    """Return what only the running asyncio task has, or else the thread or greenlet."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or _thread.identity


def _begin() -> Process:
    """Make anew what a forked child must not share with its parent; return its identity."""
    global _process  # noqa: PLW0603 - the one identity of the process
    pid = getpid()
    # A mutex for each process, since a thread of the parent may hold the parent's for ever.
    with _begun.setdefault(pid, threading.RLock()):
        if _process.pid != pid:
            for resource in list(_after_fork):
                resource.after_fork()
            _process = Process()  # last, so that whatever interrupts this has it done again
            _begun.clear()
    return _process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


class made_once(Generic[Value]):  # noqa: N801 - is used as a decorator, like property
    """A method's result as an attribute: made once, whatever number of threads read it at first.

    ``functools.cached_property`` has a mutex in Python 3.11 that may be locked in a forked child
    for ever, and none in later versions, where each of the threads makes a result of its own.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._name = make.__name__
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Take a new mutex; what a thread of the parent was making is made here anew."""
        self._mutex = threading.RLock()

    @overload
    def __get__(self, instance: None, owner: type) -> made_once[Value]: ...

    @overload
    def __get__(self, instance: Any, owner: type) -> Value: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        current_process()  # in a forked child the mutex may be another
        values = instance.__dict__
        with self._mutex:
            value = values.get(self._name, self)
            if value is self:
                value = values[self._name] = self._make(instance)
        return value
