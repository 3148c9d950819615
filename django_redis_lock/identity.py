"""Who this process is: what a holder record says of it, and what a fork makes anew."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import threading
import weakref
from typing import Any


class Process:
    """One process; a forked child gets another, so leases and channels are never shared."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.pid = os.getpid()
        self.host = socket.gethostname()
        self._local = threading.local()

    def record(self) -> str:
        """Return the opening of a holder's JSON record: host, pid and thread, no closing brace."""
        try:
            opening: str = self._local.record
        except AttributeError:
            fields = {"host": self.host, "pid": self.pid, "thread": threading.current_thread().name}
            opening = self._local.record = json.dumps(fields, separators=(",", ":"))[:-1]
        return opening


_process = Process()
_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()


def current_process() -> Process:
    """Return the identity of the running process."""
    return _process


def forget_after_fork(resource: Any) -> None:
    """Call ``resource.after_fork()`` in every child forked from here on, while it lives."""
    _after_fork.add(resource)


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


def _forked() -> None:
    global _process  # noqa: PLW0603 - the one identity of the process
    _process = Process()
    for resource in list(_after_fork):
        resource.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
