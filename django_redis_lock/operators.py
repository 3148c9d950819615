"""What the command and the admin have in common: what operators see of locks, and do to them."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import redis
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol import records
from django_redis_lock.protocol.calls import Inspect, ask
from django_redis_lock.protocol.records import Attention, AuditEntry, Holder, Limit, Unheld
from django_redis_lock.support.arguments import check_text
from django_redis_lock.support.process import current_process, state_of
from django_redis_lock.support.text import escape_unprintable, without_passwords
from django_redis_lock.transport.parking import ReadAside, ReadBacklogs

if TYPE_CHECKING:
    from django_redis_lock.models import HeldLock

    Shown = Holder | HeldLock

logger = logging.getLogger("django_redis_lock")


class Result(StrEnum):
    RELEASED = "released"
    CHANGED = "changed"
    """Another holder has it by now and keeps it."""
    GONE = "gone"
    """That hold has ended; the lock is free, or several others share it."""
    REFUSED = "refused"
    """The server refused, for instance because it is read-only: nothing was released."""
    UNAVAILABLE = "unavailable"
    """The server was unavailable, so the outcome is not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    shown: Shown
    result: Result
    loser: Holder | None = None
    """The holder that lost it, if it was released."""
    holder: Holder | None = None
    """Who holds it now: the waiter it was handed off to, or another new holder."""
    error: str = ""
    """Why it was refused or the outcome is not known; without passwords."""


def release_shown(shown: Iterable[Shown], *, by: str, reason: str = "") -> list[Outcome]:
    """Release each lock if the holder that was shown still has it; return an outcome for each.

    ``by`` says who releases and ``reason`` why, for the audit. A server that does not answer is
    asked for its first lock only.

    Raises ``ValueError`` or ``TypeError`` for an invalid reason, and for a missing one if the
    ``OPERATORS`` of an alias require it, before anything is released.
    """
    shown = list(shown)
    by, reason = check_text(by, "by"), check_reason(reason, (one.using for one in shown))
    operator = escape_unprintable(by) or "an unnamed operator"
    why = escape_unprintable(reason) or "no reason given"
    failed: dict[str, Outcome] = {}  # by alias; not asked again
    outcomes: list[Outcome] = []
    for one in shown:
        if one.using in failed:
            outcomes.append(replace(failed[one.using], shown=one))
            continue
        try:
            outcome = _release(one, by, reason)
        except (LockError, InvalidLockBackend, ValueError) as error:
            # A plain LockError is about the stored value: another program's data.
            not_applied = getattr(error, "not_applied", isinstance(error, LockError))
            result = Result.REFUSED if not_applied else Result.UNAVAILABLE
            outcome = Outcome(one, result, error=without_passwords(str(error)))
            refused = isinstance(error, LockUnavailable) and error.refused
            if isinstance(error, InvalidLockBackend | LockUnavailable) and not refused:
                failed[one.using] = outcome  # the others would run into the same, and a timeout
        if loser := outcome.loser:
            text = "Force-released lock %r of LOCKS[%r], held by %s. Requested by %s: %s"
            logger.warning(text, loser.name, loser.using, loser, operator, why)
        outcomes.append(outcome)
    return outcomes


def aliases() -> list[str]:
    """Return the aliases of LOCKS, none if LOCKS is invalid."""
    try:
        return list(locks)
    except InvalidLockBackend:
        return []


def check_reason(reason: str, usings: Iterable[str]) -> str:
    """Return a reason without blanks around it. Raises ``ValueError``, as ``release_shown``."""
    reason = check_text(reason, "reason")
    if not reason and (using := requires_reason(usings)):
        needs = f"LOCKS[{using!r}] requires a reason for each release"
        raise ValueError(f"{needs}, because OPERATORS['REASON_REQUIRED'] is True: pass one.")
    return reason


def requires_reason(usings: Iterable[str]) -> str | None:
    """Return the first alias whose ``OPERATORS`` require a reason, ``None`` without one."""
    for using in sorted(set(usings)):
        with suppress(InvalidLockBackend):  # then its locks can't be released anyway
            if locks[using].operators.reason_required:
                return using
    return None


def _release(one: Shown, by: str, reason: str) -> Outcome:
    backend = locks[one.using]
    loser = backend.force_release(one.name, one.token_id, by=by, reason=reason)
    if loser is None:
        holder = backend.holder(one.name)
        changed = holder is not None and not holder.shared
        return Outcome(one, Result.CHANGED if changed else Result.GONE, holder=holder)
    found: list[Holder] = []
    if loser.waiters != 0:
        with suppress(LockError):  # it is released all the same
            found = list(backend.holders_of([loser.name]))
    if loser.shared and loser.acquired_at is not None:
        read_at = loser.acquired_at + timedelta(seconds=loser.held_for or 0.0)
        found = [one for one in found if one.acquired_at and one.acquired_at > read_at]
    holder = max(found, key=lambda one: one.fence or 0, default=None)  # the latest of several
    return Outcome(one, Result.RELEASED, loser, holder)


@dataclass
class LockState:
    """What one backend knows of a lock; ``None`` for what could not be read."""

    using: str
    holders: list[Holder]
    first: list[Holder | Unheld]
    """One that says how many wait; none if the lock was acquired meanwhile."""
    queue: list[records.Waiter] | None = None
    backlogs: records.Backlogs | None = None
    limit: Limit | None = None
    history: list[AuditEntry] | None = None
    unknown: dict[str, LockError] = field(default_factory=dict)
    """Why ``"waiters"``, ``"limit"`` or ``"history"`` could not be read."""

    @property
    def waiters(self) -> int | None:
        known = [one.waiters for one in self.first]
        known += [] if self.queue is None else [len(self.queue)]
        return max((number for number in known if number is not None), default=None)


def read_lock(backend: BaseLockBackend, name: str, waiters: int, entries: int) -> LockState:
    """Read who holds a lock, its limit, and at most this many waiters and audit entries.

    What can't be read, except the holders, is left out.
    """
    holders = list(backend.holders_of([name]))
    state = LockState(backend.alias, holders, [*holders[:1]])

    @contextmanager
    def noting(part: str) -> Iterator[None]:
        try:
            yield
        except LockError as error:
            state.unknown[part] = error

    with noting("waiters"):
        state.first = state.first or [*unheld_among(backend, [name])]
        state.queue = backend.waiting(name, waiters)
        if any(one.parked for one in state.first):
            state.backlogs = backlogs_of(backend, name)
    with noting("limit"):
        state.limit = limit_of(backend, name)
    with noting("history"):
        state.history = backend.history(name, entries)
    return state


def limit_of(backend: BaseLockBackend, name: str) -> Limit | None:
    """Return the limit that an operator has set for a semaphore; ``None`` without one."""
    return next((one for one in backend.limits() if one.name == name), None)


def unheld(
    backend: BaseLockBackend, matches: Callable[[str], bool], most: int | None = None
) -> Iterator[Unheld]:
    """Yield what is paused, held or not, then the other limits and queues without a holder.

    For a caller that takes only ``most``, the pages that are read are small.
    """
    limits = {one.name: one for one in sorted(backend.limits(), key=lambda one: one.limit)}
    names = dict.fromkeys([*limits, *queues_of(backend)])
    paused = {name for name, one in limits.items() if not one.limit}
    for one in unheld_among(backend, filter(matches, names), most, paused):
        if one.waiters != 0 or one.name in limits:
            yield one._replace(limit=limits.get(one.name))


def queues_of(backend: BaseLockBackend) -> Iterable[str]:
    """Return the names that are waited for, without those of held locks."""
    return backend.read_index(queues=True) if backend.can_share else ()


def unheld_among(
    backend: BaseLockBackend,
    names: Iterable[str],
    most: int | None = None,
    paused: Container[str] = (),
) -> Iterator[Unheld]:
    """Yield which of some names are paused or have no holder, without their limits.

    No limit pauses what is held alone, or by readers.
    """
    size = backend.page_size if most is None else min(backend.page_size, max(100, most))
    for page in backend.operations.pages(names, size):  # of which some may be held
        _, *rest = backend.run(ask(Inspect(page)))
        for name, held, count in zip(page, rest[::3], rest[2::3], strict=True):
            values = (held[3] or [b""]) if name in paused and isinstance(held, list) else ()
            if held is None or any(records.split_value(each or b"")[3] != b"*" for each in values):
                waiters, parked = count if isinstance(count, list) else (count, 0)
                yield Unheld(name, backend.alias, waiters, parked, held[1] if held else 0)


def backlogs_of(backend: BaseLockBackend, name: str) -> records.Backlogs:
    """Return the backlogs of a lock, without what this user may not read."""
    answer = backend.run(ask(ReadBacklogs(name))) if backend.runs_scripts else []
    turns = []
    for process, found in zip(answer[::3], answer[2::3], strict=True):
        for turn, parked in zip(found[::2], found[1::2], strict=True):
            text = unquote(turn.decode(errors="replace")[1:])
            turns.append(records.Turn(process.decode()[1:], text, parked))
    return records.Backlogs(sum(answer[1::3]), turns)


def set_aside(backend: BaseLockBackend, outbox: str, name: str) -> list[records.Aside]:
    """Return the parked messages of a lock, or of all (""), that were set aside, oldest first."""
    answer, found = backend.run(ask(ReadAside(outbox, name))), []
    for member, value in zip(answer[::2], answer[1::2], strict=True):
        lock, (about, *_) = member.decode(errors="replace").partition(" ")[2], value.split(b"\n")
        since, _, reason = about.decode(errors="replace").partition(" ")
        at = records.moment(int(since) * 1000) if since.isdecimal() else None
        found.append(records.Aside(lock, backend.alias, at, reason))
    return sorted((one for one in found if name in ("", one.name)), key=lambda one: str(one.at))


def change_limit(backend: BaseLockBackend, name: str, limit: int | None, *, by: str) -> None:
    """Set the limit of a semaphore, or clear it with ``None``, and log who does it."""
    backend.set_limit(name, limit, by=by)
    done = "cleared" if limit is None else f"set to {limit}"
    operator = escape_unprintable(by) or "an unnamed operator"
    logger.warning("The limit of %r of LOCKS[%r] was %s by %s", name, backend.alias, done, operator)


def newest_first(entries: Iterable[AuditEntry]) -> list[AuditEntry]:
    unknown = datetime.min.replace(tzinfo=UTC)
    return sorted(entries, key=lambda one: one.at or unknown, reverse=True)


def by_lock(found: Iterable[Holder]) -> dict[tuple[str, str], list[Holder]]:
    """Return the holders of each lock, (alias, name), in the order of the first of each."""
    groups: dict[tuple[str, str], list[Holder]] = {}
    for one in found:
        groups.setdefault((one.using, one.name), []).append(one)
    return groups


UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def in_units(seconds: int) -> list[tuple[int, str]]:
    """Return the two largest units of a duration, without a second one that is 0."""
    found: list[tuple[int, str]] = []
    for unit, size in UNITS.items():
        amount, seconds = divmod(seconds, size)
        if amount or found or unit == "s":
            found.append((amount, unit))
    return [found[0], *(one for one in found[1:2] if one[0])]


ORDERS: dict[str, Callable[[Holder], Any]] = {
    "name": lambda one: (one.name, one.using),
    "holder": str,
    "held": lambda one: -1.0 if one.held_for is None else one.held_for,
    "lease": lambda one: math.inf if one.ttl is None else one.ttl,
    "waiters": lambda one: -1 if one.waiters is None else one.waiters,
    "fence": lambda one: -1 if one.fence is None else one.fence,
}
"""Keys to sort holders by: unknown values are lowest, and a lease with no expiry is highest."""


def sharing(shared: bool, limit: int | None, holders: int | None) -> str:
    """Return with how many a holder shares a lock, or a waiter (``None``) will; ``""`` if alone."""
    if not shared:
        return ""
    if holders is None:
        text = gettext("shared") if limit is None else gettext("one of %(limit)s")
    elif limit is None:
        text = ngettext("%(held)s holder", "%(held)s holders", holders)
    elif not limit:
        text = gettext("%(held)s held, paused")
    else:
        text = gettext("%(held)s of %(limit)s")
    return text % {"held": holders, "limit": limit}


@lru_cache(maxsize=64)
def _state_at(tenth: int, pid: int | None, began: int | None) -> str:
    return state_of(pid, began)


def attention_of(holder: Holder) -> Attention | None:
    """Return what is wrong with a hold; what is known of its process may be 0.1 s old."""
    life = judge(holder, partial(_state_at, int(monotonic() * 10))).life
    if life in (Liveness.DEAD, Liveness.STOPPED):
        return Attention(life)
    return records.attention(holder, locks[holder.using].operators.threshold(holder.name))


class Liveness(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"
    """Its process exists and does not run, as after ``SIGSTOP``."""
    DEAD = "dead"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Whether a holder is alive, and why, in the current language."""

    life: Liveness
    why: str


def judge(holder: Holder, state_of: Callable[..., str] = state_of) -> Verdict:
    """Return whether a holder is alive. It is dead only if this host knows its process is gone."""
    life = Liveness.UNKNOWN
    if state := holder.marks.get("state"):  # no process holds it
        queued = state == "queued"
        free_later = _("not held by a process; free when its lease ends")
        why = _("its message waits in a Celery queue") if queued else free_later
    elif holder.host is None:
        why = _("held by another program")
    elif holder.host != socket.gethostname():
        why = _("its holder runs on %(host)s, so this host can't tell whether it is alive")
    elif (holder.pid_space or "") != current_process().pid_space:
        why = _("its holder runs in another container of %(host)s, so its state is not known here")
    elif not (process := state_of(holder.pid, holder.pid_began)):
        life, why = Liveness.DEAD, _("process %(pid)s is gone")
    elif process in "Tt":  # a signal or a debugger stopped it
        life, why = Liveness.STOPPED, _("process %(pid)s is stopped")
    else:
        life, why = Liveness.ALIVE, _("its process is running")
    return Verdict(life, why % {"host": escape_unprintable(holder.host or ""), "pid": holder.pid})


def unwritable_because(backend: BaseLockBackend) -> str | Promise:
    """Return a sentence that the server refuses writes, and why, or ``""``.

    It is translated when it is shown. Sends one ``SET`` that writes nothing. Backends with several
    servers are not asked.
    """
    if not isinstance(backend, RedisLockBackend) or backend.location.urls:
        return ""
    alias = f"LOCKS[{backend.alias!r}]"
    try:
        client = redis.Redis(connection_pool=backend.pool)
        client.set(f"{backend.key_prefix}:{token_hex()}", "", xx=True)
    except OutOfMemoryError:
        text = _("The server of {alias} is full: it takes no new locks, but forced releases work.")
        return format_lazy(text, alias=alias)
    except (RedisError, OSError) as error:
        if isinstance(error, ResponseError) and not isinstance(error, NoPermissionError):
            text = _("The server of {alias} refuses writes, so it releases no locks: {error}")
            return format_lazy(text, alias=alias, error=without_passwords(str(error)))
    return ""
