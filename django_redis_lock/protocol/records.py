"""The record of a holder: how it is written beside the token, and how it is read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

from django_redis_lock.support.arguments import to_json
from django_redis_lock.support.process import known_process

MAX_KEPT_BYTES = 2048
"""Bytes of a record that is kept when it was read; a foreign program's may be as long as it likes,
and ours are shorter."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who held a lock when the server was asked.

    A lock that a foreign program set with ``SET key value NX PX`` has no record: its fence,
    times and origin are ``None``, and only ``token_id``, ``ttl`` and ``waiters`` speak of it.
    """

    name: str
    """The lock's name, without the key prefix."""
    using: str
    """The alias of the backend in ``LOCKS``."""
    token_id: str
    """A digest of the holder's token; the token itself is never shown."""
    fence: int | None
    """The fencing number given with the lock, rising from holder to holder."""
    acquired_at: datetime | None
    """When the lock was acquired, by the server's clock."""
    expires_at: datetime | None
    """When the lease ends, by the server's clock; ``None`` for a lease without end."""
    ttl: float | None
    """Seconds of lease left; ``None`` for a lease without end."""
    auto_renew: bool
    """Whether the holder renews its lease in the background."""
    host: str | None
    """The name of the machine that the holder runs on."""
    pid: int | None
    """The id of its process there."""
    thread: str | None
    """The name of the thread that acquired the lock."""
    waiters: int | None
    """How many wait in the line; ``None`` where the server's user may not know, or there is none:
    with the backend ``getset`` nobody tells that he waits."""
    task_id: str | None = None
    """The Celery task that holds the lock, where a task does."""
    task_name: str | None = None
    """The name of that task."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the caller gave as ``metadata``."""
    held_for: float | None = None
    """Seconds since it was acquired, by the server's clock."""
    lease: float | None = None
    """Seconds that a renewal gives; ``None`` where there is none, or the record does not tell."""
    max_hold: float | None = None
    """Seconds after which the holder renews it no more; ``None`` for without limit."""
    pid_space: str | None = None
    """What differs between containers that share a host name: their process ids are told apart by
    it. ``None`` where the holder does not know it."""

    def __str__(self) -> str:
        return who(self) or f"a foreign program ({self.token_id})"


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who stood in the line of a lock when the server was asked.

    What can't be read, because another program or another version wrote it, is ``None``.
    """

    name: str
    """The lock's name, without the key prefix."""
    using: str
    """The alias of the backend in ``LOCKS``."""
    token_id: str | None
    """A digest of the token under which it will hold the lock; the later holder's ``token_id``."""
    since: datetime | None
    """When it joined the line, by the server's clock."""
    waited: float | None
    """Seconds since then, by the server's clock."""
    lease: float | None
    """Seconds of lease that it will be given; a lock that never expires begins with ten."""
    auto_renew: bool
    """Whether it will renew its lease in the background."""
    host: str | None
    """The name of the machine that the waiter runs on."""
    pid: int | None
    """The id of its process there."""
    thread: str | None
    """The name of the thread that waits."""
    task_id: str | None = None
    """The Celery task that waits, where a task does."""
    task_name: str | None = None
    """The name of that task."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the caller gave as ``metadata``."""

    def __str__(self) -> str:
        return who(self) or "unknown"


class Origin(Protocol):
    """What tells where somebody runs."""

    @property
    def host(self) -> str | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def thread(self) -> str | None: ...
    @property
    def task_id(self) -> str | None: ...
    @property
    def task_name(self) -> str | None: ...


def who(one: Origin) -> str:
    """Return one line that names the task, or the host, process and thread; ``""`` if unknown."""
    if one.task_id:
        return f"task {one.task_name}[{one.task_id}] on {one.host}:{one.pid}"
    return f"{one.host}:{one.pid} ({one.thread})" if one.host else ""


def write_record(
    *,
    auto_renew: bool,
    metadata: Mapping[str, str] | None = None,
    task_id: str | None = None,
    task_name: str | None = None,
    lease_ms: int | None = None,
    max_hold_ms: int | None = None,
) -> str:
    """Return the JSON record of a holder in the current thread.

    ``lease_ms`` is what a renewal gives, and ``max_hold_ms`` until when there are any. Readers have
    settings of their own, so both are told of whatever is renewed.
    """
    record = known_process().record()
    if auto_renew:
        record += ',"auto_renew":true'
        if lease_ms is not None:
            record += f',"lease":{lease_ms}'
        if max_hold_ms is not None:
            record += f',"max_hold":{max_hold_ms}'
    if task_id or task_name or metadata:
        extra: dict[str, Any] = {"task_id": task_id, "task_name": task_name, "metadata": metadata}
        given = {key: value for key, value in extra.items() if value}
        record += "," + to_json(given)[1:-1]
    return record + "}"


def token_id(token: bytes) -> str:
    """Return the digest by which a token is named in public.

    The Lua scripts compute the same: the first 16 hexadecimal digits of SHA-1. A token has
    128 random bits, so it can't be found from its digest.
    """
    return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16]


def read_holder(
    value: bytes, *, name: str, using: str, ttl_ms: int, waiters: int | None, now_ms: int
) -> Holder:
    """Read what is stored under a lock's key; garbage and foreign values make a bare holder.

    ``ttl_ms`` is -1 for a lease without end; ``now_ms`` is the server's clock.
    """
    token, _, rest = value.partition(b" ")
    fence_text, _, record_text = rest.partition(b" ")
    fence = int(fence_text) if fence_text.isdigit() and len(fence_text) < 17 else None
    told, metadata = _told({}) if fence is None else _read_told(record_text)
    return Holder(
        name=name,
        using=using,
        token_id=token_id(token),
        fence=fence,
        acquired_at=None if fence is None else moment(fence),
        expires_at=None if ttl_ms < 0 else moment((now_ms + ttl_ms) * 1000),
        ttl=None if ttl_ms < 0 else ttl_ms / 1000,
        waiters=waiters,
        metadata=dict(metadata),
        held_for=None if fence is None else max(0.0, now_ms / 1000 - fence / 1_000_000),
        **told,
    )


def read_waiter(entry: bytes, *, name: str, using: str, now_ms: int) -> Waiter:
    """Read an entry of a lock's line; see ``Request.entry`` and ``common.lua``."""
    _, token, lease_text, record_text, *_ = [*entry.split(b" ", 3), b"", b"", b"", b""]
    lease_ms = int(lease_text) if lease_text.isdigit() and len(lease_text) < 17 else None
    record = {} if lease_ms is None else load_record(record_text)
    since = record.get("since")
    since = since if type(since) is int and 0 < since < 1 << 53 else None
    return Waiter(
        name=name,
        using=using,
        token_id=None if lease_ms is None else token_id(token),
        since=None if since is None else moment(since * 1000),
        waited=None if since is None else max(0.0, (now_ms - since) / 1000),
        lease=None if lease_ms is None else lease_ms / 1000,
        auto_renew=record.get("auto_renew") is True,
        metadata=_metadata(record),
        **origin(record),
    )


def origin(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that tell where somebody runs, ``None`` where unknown."""
    pid = record.get("pid")
    return {
        "host": _text(record.get("host")),
        "pid": pid if type(pid) is int else None,
        "thread": _text(record.get("thread")),
        "task_id": _text(record.get("task_id")),
        "task_name": _text(record.get("task_name")),
    }


Told = tuple[Mapping[str, Any], Mapping[str, str]]
"""What a record tells of a holder, by the names of the fields, and its metadata."""


def _told(record: Mapping[str, Any]) -> Told:
    fields = {
        "auto_renew": record.get("auto_renew") is True,
        "lease": _seconds(record.get("lease")),
        "max_hold": _seconds(record.get("max_hold")),
        "pid_space": _text(record.get("pid_space")),
        **origin(record),
    }
    return fields, _metadata(record)


def _read_told(record: bytes) -> Told:
    if len(record) > MAX_KEPT_BYTES or b'"task_id"' in record:  # no other lock has the same
        return _told(load_record(record))
    return _told_kept(record)


@lru_cache(maxsize=512)  # the locks of one process often have the same
def _told_kept(record: bytes) -> Told:
    return _told(load_record(record))


def _metadata(record: Mapping[str, Any]) -> dict[str, str]:
    metadata = record.get("metadata")
    if not isinstance(metadata, dict):
        return {}
    return {_sound(str(key)): _sound(str(item)) for key, item in metadata.items()}


def load_record(record: bytes) -> dict[str, Any]:
    """Return a record as a dict; an empty one for what is no JSON object."""
    try:
        loaded = json.loads(record.decode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Return a time of the server's clock."""
    try:
        return _EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:  # a foreign lease of ten thousand years
        return datetime.max.replace(tzinfo=UTC)


def _seconds(value: Any) -> float | None:
    return value / 1000 if type(value) is int and 0 < value < 1 << 53 else None


def _text(value: Any) -> str | None:
    return _sound(value) if isinstance(value, str) else None


def _sound(text: str) -> str:
    """Return a text that can be encoded: JSON can hold lone surrogates, and no page can."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
