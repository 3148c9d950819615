"""The processes of one worker: which of them live, and which locks each child holds.

A child records a lock before it requests it, so the server never has a lock of a child that the
ledger misses. The memory is the parent's, made before it forks and shared with its children. A
write copies a few hundred bytes, without a system call, and survives any death of the child.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import struct
import tempfile
import threading
from collections.abc import Iterator
from typing import Any
from weakref import ref

from django_redis_lock.protocol.records import Holder, token_id
from django_redis_lock.support.process import began_at, current_process, known_process, state_of

logger = logging.getLogger("django_redis_lock.celery")

FAMILY = secrets.token_hex(8)
"""Shared by a worker and the children that it forks, and by no other process.

A process id says whether a process lives only within a family: machines and containers may share a
host name, and each has its own process ids.
"""
PAGES = 1024
"""How many children the ledger has room for, dead ones that were not handled yet included."""
PAGE = 8192
"""Bytes for one child: its process, and two halves of which one is valid at a time, with room for
about forty locks with names of usual length."""
_PROCESS = struct.Struct("=QQ")  # its id, and when it began
_OPENING = struct.Struct("=H?")  # the number of bytes that follow, and whether it is incomplete
_HALF = (PAGE - _PROCESS.size) // 2
_FREE, _FIRST, _SECOND, _EMPTY = range(4)  # the states of a page: free, the valid half, no locks

Entry = tuple[str, str, str]
"""The alias, the name and the ``token_id`` of a lock."""


def is_dead(holder: Holder) -> bool:
    """Whether a task's holder is known to have died: its process, on this host, is gone.

    A lock with a ``state`` is held for a message or a rest, and by no process.
    """
    family, here = holder.metadata.get("worker"), current_process()
    if not family or holder.metadata.get("state") or holder.host != here.host:
        return False
    ours = family == FAMILY or (here.pid_space and holder.pid_space == here.pid_space)
    return bool(ours) and not state_of(holder.pid, holder.pid_began)


class Ledger:
    """The pages of all children of one worker. Raises ``OSError`` if it can't be made."""

    def __init__(self) -> None:
        # The states of all pages, one byte each, then the pages. Unused memory costs nothing.
        self._memory = mmap.mmap(-1, (1 + PAGES) * PAGE)
        # A process that takes a page locks the byte with its number, until it ends.
        self._turns = _nameless_file()
        self._turns_are = _identity(self._turns)
        self._mine: tuple[int, Page | None] = (os.getpid(), None)

    # For a child.

    def page(self) -> Page | None:
        """Return this process's page; ``None`` in the parent, and if all are taken."""
        pid = known_process().pid
        if self._mine[0] != pid:
            self._mine = (pid, self._take(pid))
        return self._mine[1]

    def _take(self, pid: int) -> Page | None:
        try:
            for number in range(PAGES):
                if self._memory[number] == _FREE and self._lock(number):
                    if self._memory[number] == _FREE:
                        return Page(self._memory, number, pid)
                    self._unlock(number)
            reason = "the ledger has no free page"
        except (OSError, ImportError) as error:
            reason = str(error)
        text = "This child is not watched: if it is killed, its locks end with their leases: %s"
        logger.warning(text, reason)
        return None

    def _lock(self, number: int) -> bool:
        import fcntl  # not on Windows, which can't fork

        if _identity(self._turns) != self._turns_are:
            raise OSError("its descriptor was closed")
        try:
            fcntl.lockf(self._turns, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, number: int) -> None:
        import fcntl

        fcntl.lockf(self._turns, fcntl.LOCK_UN, 1, number)

    # For the parent.

    def children(self) -> Iterator[tuple[int, int, int]]:
        """Yield each child's page number, process id and start time, as from ``began_at``."""
        states = self._memory[:PAGES].rstrip(b"\0")  # pages are taken from the first on
        for number, state in enumerate(states):
            if state != _FREE:
                pid, began = _PROCESS.unpack_from(self._memory, _start(number))
                yield number, pid, began

    def read(self, number: int) -> tuple[list[Entry], bool]:
        """Return what a dead child held or was requesting, and whether that is complete."""
        state = self._memory[number]
        if state == _EMPTY:
            return [], True
        start = _start(number, state)
        size, more = _OPENING.unpack_from(self._memory, start)
        start += _OPENING.size
        fields = self._memory[start : start + size].decode().split("\0")
        entries = zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
        return [(using, name, token_id(token.encode())) for using, name, token in entries], not more

    def free(self, number: int) -> None:
        self._memory[number] = _FREE

    def close(self) -> None:
        self._memory.close()
        os.close(self._turns)


class Page:
    def __init__(self, memory: mmap.mmap, number: int, pid: int) -> None:
        self._memory = memory
        self._number = number
        self._held: dict[str, tuple[ref[Any], bytes]] = {}  # by token
        self._mutex = threading.RLock()  # a signal handler may interrupt its holder
        self._half = _FIRST
        _PROCESS.pack_into(memory, _start(number), pid, began_at(pid))
        memory[number] = _EMPTY

    def enter(self, lock: Any, using: str, token: str) -> None:
        """Record a ``TaskLock`` that is about to be requested with a token."""
        entry = f"{using}\0{lock.name}\0{token}\0".encode()
        with self._mutex:
            if self._held:
                self._cross_out_unused()
            self._held[token] = ref(lock), entry
            self._write()

    def leave(self, token: str) -> None:
        with self._mutex:
            if self._held.pop(token, None) is not None:
                self._write()

    def _cross_out_unused(self) -> None:
        for token, (handle, _) in list(self._held.items()):
            lock = handle()
            if lock is None or not lock.in_use:
                del self._held[token]

    def _write(self) -> None:
        """Write all entries to the half that is not valid, then switch halves with one byte.

        So a process that is killed while it writes leaves its previous entries.
        """
        if not self._held:
            self._memory[self._number] = _EMPTY
            return
        text = b"".join([entry for _, entry in self._held.values()])
        more = len(text) > _HALF - _OPENING.size
        text = _OPENING.pack(0, more) if more else _OPENING.pack(len(text), more) + text
        self._half = _SECOND if self._half == _FIRST else _FIRST
        start = _start(self._number, self._half)
        self._memory[start : start + len(text)] = text
        self._memory[self._number] = self._half


def _start(number: int, state: int = _FREE) -> int:
    """Return the position of a page, or of the half of it that ``state`` names."""
    start = (1 + number) * PAGE
    return start + _PROCESS.size + (state - 1) * _HALF if state else start


_ledger: Ledger | None = None


def open_ledger() -> Ledger:
    """Make this worker's ledger, for the children forked from here on. Raises ``OSError``."""
    global _ledger  # noqa: PLW0603 - children inherit it
    _ledger = Ledger()
    return _ledger


def forget_ledger() -> None:
    global _ledger  # noqa: PLW0603 - as above
    if _ledger is not None:
        _ledger.close()
    _ledger = None


def this_page() -> Page | None:
    """Return the page of this process; ``None`` unless it is a worker's child."""
    return None if _ledger is None else _ledger.page()


def _nameless_file() -> int:
    try:
        return os.memfd_create("django-redis-lock")  # needs no writable directory
    except (AttributeError, OSError):  # not Linux, or not permitted
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
