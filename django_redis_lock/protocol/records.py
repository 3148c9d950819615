"""Holders, waiters and the audit as operators see them, and the records they are read from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django_redis_lock.protocol.lease import token_id
from django_redis_lock.support.arguments import check_name
from django_redis_lock.support.text import escape_unprintable

MAX_READ_BYTES = 16_384  # of the longest record that is read, others are cut; see ``inspect.lua``


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What identifies a process and its task; ``None`` where that can't be read."""

    host: str | None  #: The host name of the process's machine.
    pid: int | None  #: The process id.
    thread: str | None  #: The name of the thread that acquired the lock, or waits for it.
    task_id: str | None = None  #: The id of its Celery task, if it has one.
    task_name: str | None = None  #: The name of that task.

    _if_unknown = ""

    def __str__(self) -> str:
        """Return the task, or the host, process and thread, in one line."""
        if self.task_id:
            task = f"task {self.task_name}[{self.task_id}]"
            return escape_unprintable(f"{task} on {self.host}:{self.pid}")
        thread = f"{self.host}:{self.pid} ({self.thread})"
        return escape_unprintable(thread) if self.host else self._if_unknown


ORIGIN = tuple(Origin.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caller(Origin):
    name: str  #: The lock's name, without the key prefix.
    using: str  #: The alias of the backend in ``LOCKS``.
    auto_renew: bool  #: Whether it renews its lease in the background, or will.
    metadata: Mapping[str, str] = field(default_factory=dict)  #: The caller's ``metadata``.
    shared: bool = False  #: Whether others may hold the lock at the same time.
    limit: int | None = None  #: How many may hold permits: an operator's number, or its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(_Caller):
    """The holder of a lock at the time the server was asked.

    A lock that another program set with ``SET key value NX PX`` has no record. Its fence, times and
    origin are ``None``; only ``token_id``, ``ttl`` and ``waiters`` are known.
    """

    token_id: str  #: A digest of the holder's token; the token itself is never shown.
    fence: int | None  #: The fence, which rises from holder to holder.
    acquired_at: datetime | None  #: When the lock was acquired, by the server's clock.
    expires_at: datetime | None  #: When the lease ends, by the server's clock; ``None`` if never.
    ttl: float | None  #: Seconds of lease left; ``None`` for a lease with no expiry.
    waiters: int | None  #: The length of the queue; ``None`` without one, or if not readable.
    holders: int = 1  #: How many hold the lock now, this one among them.
    held_for: float | None = None  #: Seconds since it was acquired, by the server's clock.
    lease: float | None = None  #: Seconds that a renewal gives; ``None`` if unknown or not renewed.
    max_hold: float | None = None  #: Seconds after which renewal stops; ``None`` for no limit.
    pid_space: str | None = None  #: What differs in containers that share a host name, if known.
    pid_began: int | None = None  #: When the process began, in clock ticks since boot, if known.
    parked: int = 0  #: How many waiters are parked Celery tasks, so that no process waits.
    marks: Mapping[str, str] = field(default_factory=dict)
    """What this package notes about a hold, such as the ``state`` of one that no process has."""
    cut: bool = False  #: Whether another program has written a record that is too long to be read.

    def __str__(self) -> str:
        cut = f"; its record of over {MAX_READ_BYTES} bytes was cut" * self.cut
        return Origin.__str__(self) or f"another program ({self.token_id}{cut})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter(_Caller):
    """An entry in the queue of a lock when the server was asked; what can't be read is ``None``."""

    token_id: str | None  #: A digest of its token: the ``token_id`` it will have as the holder.
    since: datetime | None  #: When it joined the queue, by the server's clock.
    waited: float | None  #: Seconds since then, by the server's clock.
    lease: float | None  #: Seconds of lease that it will get; ten at first if it never expires.
    parked: bool = False  #: Whether it is a task whose message waits, and no process.

    _if_unknown = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many permits a semaphore has, as an operator has set it."""

    name: str  #: The name of the semaphore.
    using: str  #: The alias of the backend in ``LOCKS``.
    limit: int  #: How many may hold a permit.
    by: str  #: The ``by`` given to ``set_limit()``.
    at: datetime  #: When it was set, by the server's clock.


class Unheld(NamedTuple):
    """A name that is paused or has no holder: how many wait, and the limit that was set."""

    name: str
    using: str
    waiters: int | None
    parked: int
    held: int = 0
    limit: Limit | None = None


class Turn(NamedTuple):
    """A backlog: the outbox it is in, the text that its tasks share ("" if they take no turns)."""

    outbox: str
    turn: str
    parked: int


class Backlogs(NamedTuple):
    """The backlogs of a lock: how many there are, and those whose turn is next."""

    number: int
    turns: list[Turn]


class Aside(NamedTuple):
    """A parked message that was set aside, as no worker could read it."""

    name: str
    using: str
    at: datetime | None
    reason: str


def read_holder(
    value: bytes,
    *,
    name: str,
    using: str,
    ttl_ms: int,
    waiters: int | list[int] | None,
    now_ms: int,
    limit: bytes | None = None,
    holders: int = 1,
) -> Holder:
    """Read the value of a lock. Other programs' values and garbage give a holder without a record.

    ``ttl_ms`` is -1 for no expiry. ``limit`` is what an operator has set, which overrides that of
    the record. ``waiters`` come with the number of those that are parked if there are any.
    """
    waiters, parked = waiters if isinstance(waiters, list) else (waiters, 0)
    token, fence_text, _, own_limit, fields = split_value(value)
    fence = _whole(fence_text)
    sharing = _sharing(b"" if fence is None else own_limit)
    set_to = None if limit is None else _whole(limit.partition(b" ")[0])
    if set_to is not None and sharing["limit"] is not None:
        sharing["limit"] = set_to
    cut = len(fields) > MAX_READ_BYTES
    record = _read_record(b"" if fence is None or cut else fields)
    return Holder(
        name=name,
        using=using,
        token_id=token_id(token),
        fence=fence,
        acquired_at=None if fence is None else moment(fence),
        expires_at=None if ttl_ms < 0 else moment((now_ms + ttl_ms) * 1000),
        ttl=None if ttl_ms < 0 else ttl_ms / 1000,
        waiters=waiters,
        parked=parked,
        holders=holders,
        held_for=None if fence is None else max(0.0, now_ms / 1000 - fence / 1_000_000),
        cut=cut,
        **record | {"metadata": {**record["metadata"]}, "marks": {**record["marks"]}},
        **sharing,
    )


@lru_cache(maxsize=128)  # the locks of one process often have the same
def _read_record(fields: bytes) -> dict[str, Any]:
    record = _load(fields)
    began = record.get("pid_began")
    return {
        "lease": _seconds(record.get("lease")),
        "max_hold": _seconds(record.get("max_hold")),
        "pid_space": _text(record.get("pid_space")),
        "pid_began": began if type(began) is int and began > 0 else None,
        "marks": _texts(record, "marks"),
        **_caller(record),
    }


def split_value(value: bytes) -> list[bytes]:
    """Return token, fence, claim, limit and fields of a value; see ``base.lua``."""
    return [*value.split(b" ", 4), b"", b"", b"", b""][:5]


def read_sharing(value: Sequence[Any], *, now_ms: int, **known: Any) -> list[Holder]:
    """Read the shared holders of a lock, in the order in which they got it; see ``inspect.lua``."""
    limit, number, ends, values = value
    known |= {"now_ms": now_ms, "limit": limit, "holders": number}
    holders = {}
    for digest, end, permit in zip(ends[::2], ends[1::2], values, strict=False):
        left = -1 if end == b"inf" else int(float(end)) - now_ms
        one = read_holder(permit or b"", ttl_ms=left, **known)
        holders[digest] = replace(one, token_id=digest.decode(errors="replace"))
    return sorted(holders.values(), key=lambda one: one.fence or 0)


def read_waiter(entry: bytes, *, position: int, name: str, using: str, now_ms: int) -> Waiter:
    """Read an entry of a lock's queue; see ``waiting.lua``."""
    process, digest, lease_text, limit, fields = split_value(entry)
    lease_ms = _whole(lease_text)
    read = lease_ms is not None and len(fields) <= MAX_READ_BYTES
    record = _load(fields) if read else {}
    return Waiter(
        name=name,
        using=using,
        token_id=None if lease_ms is None else digest.decode(errors="replace"),
        since=moment(position),
        waited=max(0.0, now_ms / 1000 - position / 1_000_000),
        lease=None if lease_ms is None else lease_ms / 1000,
        parked=process.startswith(b"@"),
        **_sharing(limit),
        **_caller(record),
    )


def read_limit(name: bytes, value: bytes, *, using: str) -> Limit | None:
    """Read a limit that was set; ``None`` if another program wrote it."""
    limit, at, by, *_ = [*value.split(b" ", 2), b"", b""]
    number, at_ms = _whole(limit), _whole(at)
    if number is None or at_ms is None:
        return None
    try:
        text = check_name(name.decode())
    except ValueError:
        return None
    by_text = by.decode(errors="replace")
    return Limit(name=text, using=using, limit=number, by=by_text, at=moment(at_ms * 1000))


def _sharing(limit: bytes) -> dict[str, Any]:
    """Return with whom a holder shares the lock, by the limit in its record."""
    number = _whole(limit)
    return {"shared": number is not None or limit == b"*", "limit": number}


def _caller(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says of any caller, ``None`` if unknown."""
    pid, renewed = record.get("pid"), record.get("auto_renew") is True
    texts: dict[str, Any] = {key: _text(record.get(key)) for key in ORIGIN}
    texts["pid"] = pid if type(pid) is int else None
    return {**texts, "auto_renew": renewed, "metadata": _texts(record, "metadata")}


def _texts(record: Mapping[str, Any], key: str) -> dict[str, str]:
    texts = record.get(key)
    if not isinstance(texts, dict):
        return {}
    return {_sound(str(key)): _sound(str(item)) for key, item in texts.items()}


def _load(record: bytes) -> dict[str, Any]:
    """Return a record as a dict, empty unless it is a JSON object."""
    try:
        loaded = json.loads(record.decode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Return a time of the server's clock as a datetime."""
    try:
        return _EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:  # another program's lease of ten thousand years
        return datetime.max.replace(tzinfo=UTC)


def _whole(text: str | bytes) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _seconds(value: Any) -> float | None:
    return value / 1000 if type(value) is int and 0 < value < 1 << 53 else None


def _text(value: Any) -> str | None:
    return _sound(value) if isinstance(value, str) else None


def _sound(text: str) -> str:
    """Escape lone surrogates, which JSON can contain but no page can."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


FORCE_RELEASED: Final = "force_released"
FREED: Final = "freed"


@dataclass(frozen=True, slots=True)
class AuditEntry(Origin):
    """An event in the audit, with the former holder's origin, empty or ``None`` if unreadable."""

    id: str  #: The id of the entry; ids rise with time.
    at: datetime | None  #: When it was written, by the server's clock.
    event: str  #: ``force_released`` from its holder, or ``freed`` by a worker of a dead holder.
    name: str  #: The lock's name, without the key prefix.
    using: str  #: The alias of the backend in ``LOCKS``.
    fence: int | None  #: The fence of the hold that ended.
    token_id: str  #: The ``Holder.token_id`` of the hold that ended.
    by: str  #: The ``by`` given to ``force_release()``.
    reason: str  #: The ``reason`` given to ``force_release()``, or why it was freed.

    _if_unknown = "another program"


def audit_fields(event: str, holder: Holder, by: str, reason: str) -> dict[str, str]:
    """Return the entry for a lock that is released by force or freed."""
    origin = {key: getattr(holder, key) for key in ORIGIN}
    return {
        "event": event,
        "name": holder.name,
        "fence": "" if holder.fence is None else str(holder.fence),
        "token_id": holder.token_id,
        "by": by,
        "reason": reason,
        **{key: str(value) for key, value in origin.items() if value is not None},
    }


def read_entry(entry_id: bytes, pairs: Sequence[bytes], *, using: str) -> AuditEntry:
    """Read an entry from its id and its alternating fields and values."""
    texts = [each.decode(errors="replace") for each in pairs]
    fields = dict(zip(texts[0::2], texts[1::2], strict=False))
    written_ms = _whole(entry_id.split(b"-")[0])
    facts: dict[str, Any] = {key: fields.get(key) or None for key in ORIGIN}
    facts["pid"] = _whole(fields.get("pid", ""))
    facts |= {key: fields.get(key, "") for key in ("event", "name", "token_id", "by", "reason")}
    return AuditEntry(
        id=entry_id.decode(errors="replace"),
        at=None if written_ms is None else moment(written_ms * 1000),
        using=using,
        fence=_whole(fields.get("fence", "")),
        **facts,
    )


def newest(pages: Iterable[Sequence[Any]]) -> tuple[bytes, list[Any]]:
    """Merge pages of several audits, as ``history.lua`` returns them: an id and entries, from new.

    The next page begins before the id, which is empty after the last one. Entries older than the
    end of any page are left for the next one.
    """
    pages = list(pages)
    end = max((page[0] for page in pages if page[0]), key=_parts, default=b"")
    entries = [entry for page in pages for entry in page[1:]]
    entries.sort(key=lambda entry: _parts(entry[0]), reverse=True)
    return end, [entry for entry in entries if not end or _parts(entry[0]) >= _parts(end)]


def _parts(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


DAY = 86_400.0
LATE = 0.5  # the part of a lease that is left when its renewal is late; it is due at 2/3
ABOUT = 1.0  # seconds by which the end of the last lease may differ from ``max_hold``


class Attention(StrEnum):
    """Why a lock needs an operator's attention."""

    DEAD = "dead"  #: Its holder's process is gone, as far as this host knows.
    STOPPED = "stopped"  #: Its holder's process is stopped, and renews nothing.
    HELD_LONG = "held_long"  #: Held for longer than ``WARN_AFTER`` allows for its name.
    ENDLESS_OLD = "endless_old"  #: No expiry; held longer than ``WARN_AFTER``, or a day, allows.
    RENEWAL_LATE = "renewal_late"  #: Renewed by its holder, but not in time.


def attention(holder: Holder, threshold: float | None) -> Attention | None:
    """Return what is wrong with a hold, if known. ``threshold`` (s) is that of ``WARN_AFTER``."""
    if is_renewed(holder) and holder.ttl is not None and holder.ttl < LATE * (holder.lease or 0):
        return Attention.RENEWAL_LATE
    if threshold is None:
        threshold = DAY if holder.ttl is None else math.inf
    if holder.held_for is None or holder.held_for <= threshold:
        return None
    return Attention.ENDLESS_OLD if holder.ttl is None else Attention.HELD_LONG


def is_renewed(holder: Holder) -> bool:
    """Whether the holder will renew again. It does not once the lease ends at ``max_hold``."""
    if holder.max_hold is None or holder.held_for is None or holder.ttl is None:
        return holder.auto_renew
    return holder.auto_renew and holder.held_for + holder.ttl < holder.max_hold - ABOUT
