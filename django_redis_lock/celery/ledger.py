"""What each child of a worker holds, where its parent can read it when the child is dead.

A child writes down what it is about to ask for before it asks, so at no moment the server has given
a lock that the ledger does not name. The memory is the parent's, made before it forks and shared
with its children; a write is a copy of some hundred bytes, without a system call. Whatever a child
dies of, what it wrote is there.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from typing import Protocol
from weakref import ref

from django_redis_lock.celery.family import began_at
from django_redis_lock.protocol.records import token_id
from django_redis_lock.support.process import known_process

logger = logging.getLogger("django_redis_lock.celery")

PAGES = 1024
"""How many children can be in the ledger at once, the dead that are not seen to included."""
PAGE = 8192
"""Bytes for one child: its process, and two halves of which one is valid at a time, with room for
about forty locks of usual names."""
_PROCESS = struct.Struct("=QQ")  # its number, and when it began
_OPENING = struct.Struct("=H?")  # how many bytes follow, and whether there was more to say
_HALF = (PAGE - _PROCESS.size) // 2
_FREE, _FIRST, _SECOND, _EMPTY = range(4)  # what a page is, or which half of it is valid

Entry = tuple[str, str, str]
"""The alias, the name and the ``token_id`` of a lock."""


class Held(Protocol):
    """A handle whose lock is written down."""

    name: str

    @property
    def in_use(self) -> bool:
        """Whether it holds its lock or is acquiring it."""


class Ledger:
    """The pages of all children of one worker. Raises ``OSError`` where it can't be made."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        # The states of all pages, a byte each, and then the pages; the system gives what is used.
        self._memory = mmap.mmap(-1, (1 + PAGES) * PAGE)
        # Its bytes are locked, for a process that takes a page. A lock goes with its process.
        self._turns = _nameless_file()
        self._turns_are = _identity(self._turns)
        self._mine: tuple[int, Page | None] = (self._owner, None)

    # For a child.

    def page(self) -> Page | None:
        """Return the page of the running process; none for the parent, and where all are taken."""
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
        words = "No watch over this child: its locks end with their leases should it be killed: %s"
        logger.warning(words, reason)
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
        """Yield the page of each child, its process and when that began, by ``began_at``."""
        states = self._memory[:PAGES].rstrip(b"\0")  # the first free page is taken
        for number, state in enumerate(states):
            if state != _FREE:
                pid, began = _PROCESS.unpack_from(self._memory, _start(number))
                yield number, pid, began

    def read(self, number: int) -> tuple[list[Entry], bool]:
        """Return what a dead child held or was asking for, and whether that is all of it."""
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
        """Give the page of a dead child to the next one."""
        self._memory[number] = _FREE

    def close(self) -> None:
        """Let go of it; no child has been forked with it."""
        self._memory.close()
        os.close(self._turns)


class Page:
    """What one process holds."""

    def __init__(self, memory: mmap.mmap, number: int, pid: int) -> None:
        self._memory = memory
        self._number = number
        self._held: dict[str, tuple[ref[Held], bytes]] = {}  # by token
        self._mutex = threading.RLock()  # a signal may be handled in the midst of it
        self._half = _FIRST
        _PROCESS.pack_into(memory, _start(number), pid, began_at(pid))
        memory[number] = _EMPTY

    def enter(self, lock: Held, using: str, token: str) -> None:
        """Write down a lock that is about to be asked for, under a token."""
        entry = f"{using}\0{lock.name}\0{token}\0".encode()
        with self._mutex:
            if self._held:
                self._cross_out_what_is_over()
            self._held[token] = ref(lock), entry
            self._write()

    def leave(self, token: str) -> None:
        """Cross out a lock that is known to be released."""
        with self._mutex:
            if self._held.pop(token, None) is not None:
                self._write()

    def _cross_out_what_is_over(self) -> None:
        """Forget what was not taken, and what ended without a word."""
        for token, (handle, _) in list(self._held.items()):
            lock = handle()
            if lock is None or not lock.in_use:
                del self._held[token]

    def _write(self) -> None:
        """Write all in the half that is not valid, then make that the valid one by one byte.

        So a process that is killed in the midst of it leaves what it had written before.
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
    """Return where a page begins, or a half of it."""
    start = (1 + number) * PAGE
    return start + _PROCESS.size + (state - 1) * _HALF if state else start


_ledger: Ledger | None = None


def open_ledger() -> Ledger:
    """Make the ledger of this worker, for the children that it forks from here on.

    Raises ``OSError``.
    """
    global _ledger  # noqa: PLW0603 - a child knows it by nothing else
    _ledger = Ledger()
    return _ledger


def forget_ledger() -> None:
    """Let go of the ledger of a worker that forks no children."""
    global _ledger  # noqa: PLW0603 - as above
    if _ledger is not None:
        _ledger.close()
    _ledger = None


def this_page() -> Page | None:
    """Return the page of a worker's child, ``None`` in any other process."""
    return None if _ledger is None else _ledger.page()


def _nameless_file() -> int:
    try:
        return os.memfd_create("django-redis-lock")  # needs no directory that can be written
    except (AttributeError, OSError):  # not Linux, or not permitted
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
