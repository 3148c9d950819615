"""The identity of this process, its threads and asyncio tasks; what a forked child begins anew."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
import threading
import weakref
from os import getpid
from pathlib import Path
from typing import Any


class Process:
    """One process; a forked child gets another, so leases and channels are never shared."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.pid = getpid()
        self.host = socket.gethostname()
        self.pid_space = pid_space()
        self.pid_began = began_at(self.pid)
        self._local = threading.local()

    def record(self) -> str:
        """Return the start of a holder's JSON record, without the closing brace."""
        try:
            opening: str = self._local.record
        except AttributeError:
            thread = threading.current_thread().name
            fields: dict[str, Any] = {"host": self.host, "pid": self.pid, "thread": thread}
            if self.pid_space:
                fields |= {"pid_space": self.pid_space, "pid_began": self.pid_began}
            opening = self._local.record = json.dumps(fields, separators=(",", ":"))[:-1]
        return opening


def pid_space() -> str:
    """Return an id of the PID namespace of this process, such as a container; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        inode = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # a system without /proc
        return ""
    return hashlib.sha256(f"{boot} {inode}".encode()).hexdigest()[:8]


def state_of(pid: int | None, began: int | None = None) -> str:
    """Return the letter of a process's state in ``/proc``, ``"?"`` if unknown, ``""`` if gone.

    Zombies are gone. With ``began``, from ``began_at``, so is one whose id a later process has.
    """
    if pid is None or pid <= 0 or os.name == "nt":  # where the signal 0 is Ctrl-C
        return "?"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except (PermissionError, OverflowError):  # another user's process
        pass
    state, at = _read_stat(pid)
    return "" if state in "ZX" or (began and at not in (0, began)) else state


def began_at(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 if unknown."""
    return _read_stat(pid)[1]


def _read_stat(pid: int) -> tuple[str, int]:
    with contextlib.suppress(OSError, LookupError):
        # It may be mounted from another PID namespace, where the ids are those of others.
        if Path("/proc/self").readlink() == Path(str(getpid())):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return stat[0], int(stat[19])
    return "?", 0


_process = Process()
_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()
_begun: dict[int, threading.RLock] = {}  # by process: held while a child begins
_inherited: list[Any] = []


def current_process() -> Process:
    """Return the identity of the running process. Every operation calls it, with no mutex held.

    In a child that was forked without Python's fork hooks, as by uWSGI, it runs them.
    """
    process = _process
    return process if process.pid == getpid() else _begin()


def known_process() -> Process:
    """Return the last result of ``current_process``, without a system call."""
    return _process


def forget_after_fork(resource: Any) -> None:
    """Call ``resource.after_fork()`` in every child forked from here on, while it lives."""
    current_process()  # not while a child goes through them
    _after_fork.add(resource)


def retain_inherited(things: Any) -> None:
    """Keep what the parent's asyncio tasks wait on from being garbage collected in this child.

    Else a task would clean up in the child, and a connection leave the epoll set that both share.
    """
    _inherited.append(things)


class _Thread(threading.local):
    """One thread or greenlet, for as long as it lives."""

    def __init__(self) -> None:
        self.identity = Identity()


class Identity:
    """Stands for a thread or caller. Unlike a number, it is not reused while it is referred to."""

    __slots__ = ("__weakref__",)


_own_thread = _Thread()


def current_execution() -> object:
    """Return the running asyncio task, or an object of the thread or greenlet."""
    if asyncio._get_running_loop() and (task := asyncio.current_task()):
        return task
    # Of the greenlet with which a thread begins, the thread stands for it. Where gevent patches
    # threads late, as in a preloaded gunicorn, greenlets share ``_own_thread``.
    getcurrent = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    greenlet = getcurrent and getcurrent()
    return _own_thread.identity if getattr(greenlet, "parent", None) is None else greenlet


def kind_of_execution() -> str:
    """Return what runs here: ``"task"`` for one of asyncio, ``"greenlet"`` or ``"thread"``."""
    running = current_execution()
    if running is _own_thread.identity:
        return "thread"
    return "task" if asyncio.isfuture(running) else "greenlet"


def _begin() -> Process:
    """Renew what a forked child must not share with its parent."""
    global _process  # noqa: PLW0603 - the one identity of the process
    pid = getpid()
    # A mutex per process, because a thread of the parent may hold the parent's forever.
    with _begun.setdefault(pid, threading.RLock()):
        if _process.pid != pid:
            for resource in list(_after_fork):
                resource.after_fork()
            _process = Process()  # last, so that it is repeated if interrupted
            _begun.clear()
    return _process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
