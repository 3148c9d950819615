"""What operators ask of a backend: holders, queues, limits, the audit and forced releases.

A program that only locks never imports this module.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import translate
from itertools import islice
from operator import attrgetter
from typing import Any

from django_redis_lock import signals
from django_redis_lock.exceptions import LockError
from django_redis_lock.protocol import calls, records
from django_redis_lock.protocol.calls import Steps, ask
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import check_name, check_number, check_text
from django_redis_lock.support.text import escape_unprintable

logger = logging.getLogger("django_redis_lock")


class Operations:
    """The steps of a backend's methods for operators."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def pages(self, names: Iterable[str], size: int = 0) -> Iterator[list[str]]:
        left = iter(names)
        while page := list(islice(left, size or self._backend.page_size)):
            yield page

    def read(self, names: list[str]) -> Steps[list[records.Holder]]:
        now_ms, *rest = yield from ask(calls.Inspect(names))
        holders: list[records.Holder] = []
        for name, value, ttl, waiters in zip(names, rest[::3], rest[1::3], rest[2::3], strict=True):
            known: dict[str, Any] = {"name": name, "using": self._backend.alias}
            known |= {"waiters": waiters, "now_ms": now_ms}
            if isinstance(value, list):
                yield from self._read_permits(name, value)
                holders += records.read_sharing(value, **known)
            elif value is not None:
                holders.append(records.read_holder(value, ttl_ms=ttl, **known))
        return holders

    def _read_permits(self, name: str, value: list[Any]) -> Steps[None]:
        """Add to the shared holders of a lock the others, which took more than one call to read."""
        _, number, ends, rests = value
        while len(rests) < number:
            _, more, *_ = yield from ask(calls.Inspect([name], len(rests)))
            if not isinstance(more, list) or not more[3]:
                break  # some have ended meanwhile
            ends += more[2]
            rests += more[3]

    def read_index(self, pattern: str, *, queues: bool = False) -> Steps[dict[str, float]]:
        """Read the indexes of all servers or shards, ten times as many names as locks at a time."""
        matches, found = re.compile(translate(pattern)).match, dict[str, float]()
        number = self._backend.indexes
        # With pages of one name, a lock that is renewed again and again would fill them forever.
        size = max(2, 10 * self._backend.page_size // number)
        parts: list[calls.ReadIndex | None] = [calls.ReadIndex("", b"", size, queues)] * number
        while any(parts):
            only = parts[0] if number == 1 else None
            pages = [(yield from ask(only))] if only else (yield from ask(calls.ReadPages(parts)))
            for position, (call, page) in enumerate(zip(parts, pages, strict=True)):
                parts[position] = None
                if call is not None and page is not None:
                    members, ends, last = page[0], page[1].split(), page[2]
                    for name, end in zip(_read_names(members), map(float, ends), strict=False):
                        if name is not None and matches(name) and end >= found.get(name, end):
                            found[name] = end
                    parts[position] = _next_page(call, ends, last)
        ordered = sorted(zip(found.values(), found, strict=True), reverse=True)
        return {name: end for end, name in ordered}

    def read_queue(self, name: str, limit: int | None) -> Steps[list[records.Waiter]]:
        if limit is not None:
            check_number("limit", limit, 1)
        waiters: dict[str | None, records.Waiter] = {}  # a quorum may return one twice
        after = 0
        while limit is None or len(waiters) < limit:
            now_ms, *page = yield from ask(calls.ReadQueue(check_name(name), after))
            known = {"name": name, "using": self._backend.alias, "now_ms": now_ms}
            for position, entry in zip(map(int, page[::2]), page[1::2], strict=True):
                waiter = records.read_waiter(entry, position=position, **known)
                waiters.setdefault(waiter.token_id, waiter)
            if not page:
                break
            after = int(page[-2])
        return list(waiters.values())[:limit]

    def read_history(self, name: str | None, limit: int) -> Steps[list[records.AuditEntry]]:
        check_number("limit", limit, 1)
        wanted = "" if name is None else check_name(name)
        found: dict[Hashable, tuple[bytes, list[bytes]]] = {}
        before = b"+"
        while before and len(found) < limit:
            call = calls.ReadHistory(wanted, before.decode(), limit - len(found))
            before, entries = records.newest((yield from ask(call)))
            for entry_id, pairs in entries:
                event = self._backend.event_of(entry_id, pairs)
                found.setdefault(event, (entry_id, pairs))
        some = list(found.values())[:limit]
        return [records.read_entry(*one, using=self._backend.alias) for one in some]

    def set_limit(self, name: str, limit: int | None, by: str) -> Steps[None]:
        arguments.check_sharing(arguments.Sharing(shared=True, limit=limit))
        self._backend.require_sharing(name)
        yield from ask(calls.SetLimit(check_name(name), limit, check_text(by, "by")))
        self._backend.freed(name)

    def read_limits(self) -> Steps[list[records.Limit]]:
        found = (yield from ask(calls.ReadLimits())) if self._backend.can_share else []
        using, pairs = self._backend.alias, zip(found[::2], found[1::2], strict=True)
        limits = [records.read_limit(name, value, using=using) for name, value in pairs]
        return sorted(filter(None, limits), key=attrgetter("name"))

    def why_refused(self, name: str, limit: int | None) -> Steps[str]:
        """Return why a permit, one of ``limit``, can't be had; ``""`` if that is not known."""
        try:
            held = yield from self.read([name])
            found = [one for one in (yield from self.read_limits()) if one.name == name]
        except LockError:
            return ""
        by = ""
        for one in found:
            limit, by = one.limit, f", set by {escape_unprintable(one.by) or 'an operator'}"
        if limit == 0:
            return f"paused: limit 0{by}"
        if limit is None or len(held) < limit or not all(one.shared for one in held):
            return ""
        return f"all {limit} permits are taken" if limit > 1 else "the only permit is taken"

    def force_release(
        self, name: str, token_id: str | None, *, reason: str, by: str = "", freed: bool = False
    ) -> Steps[records.Holder | None]:
        by, reason = check_text(by, "by"), check_text(reason, "reason")
        if token_id is not None:
            arguments.check_token_id(token_id)  # of another program, it may be any text
        # The call always names the holder: sent twice, it must not hit the next one.
        shown = yield from self.read([check_name(name)])
        if token_id is None and len(shown) > 1:
            raise LockError(
                f"Lock {name!r} has {len(shown)} holders: pass the token_id of one.",
                name=name,
            )
        holder = next((each for each in shown if token_id in (None, each.token_id)), None)
        if holder is None:
            return None
        backend = self._backend
        event = records.FREED if freed else records.FORCE_RELEASED
        entry = records.audit_fields(event, holder, by, reason)
        call = calls.ForceRelease(name, holder.token_id, entry, backend.operators.audit_entries)
        answer = yield from ask(call)
        if answer is None:
            return None  # it has another holder by now
        backend.freed(name)
        if answer == 2:
            logger.warning("Released lock %r without an entry in the audit", name)
        signal = signals.lock_freed if freed else signals.lock_force_released
        facts = {"holder": holder, "held_for": holder.held_for, **({} if freed else {"by": by})}
        yield from backend.emit(signal, name, **facts, reason=reason)
        return holder


def read_name(member: bytes) -> str | None:
    """Return what the index has as a name, ``None`` if it is not one."""
    with suppress(ValueError):
        return check_name(member.decode())
    return None


def _read_names(members: bytes) -> list[str] | list[str | None]:
    """Read the names of a page: all at once if that suffices, which is ten times faster."""
    with suppress(ValueError):
        names = members.decode().split("\n")
        fit = max(map(len, names)) <= arguments.MAX_NAME_LENGTH
        if fit and all(names) and "".join(names).isprintable():
            return names
    return [*map(read_name, members.split(b"\n"))]


def _next_page(call: calls.ReadIndex, ends: Sequence[bytes], last: bytes) -> calls.ReadIndex | None:
    """Return the call for the next page, ``None`` after the last.

    An offset would not do: when an entry leaves, one that was not read yet takes its place. The
    next page begins at the last lease end, so that some names come twice and count once. If the
    whole page has one lease end, as leases with no expiry do, it begins after the last name.
    """
    if len(ends) < call.count:
        return None
    return replace(call, start=ends[-1].decode(), after=last if ends[0] == ends[-1] else b"")
