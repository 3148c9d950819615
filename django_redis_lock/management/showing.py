"""``locks list``, ``show`` and ``history``: what is held, a lock in detail, and the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from django.utils.text import get_text_list

from django_redis_lock import operators
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Column, Terminal, nothing
from django_redis_lock.operators import (
    Liveness,
    LockState,
    attention_of,
    judge,
    sharing,
    unheld,
)
from django_redis_lock.protocol import records
from django_redis_lock.protocol.records import Aside, AuditEntry, Holder, Limit, Unheld, Waiter
from django_redis_lock.support.celery_app import celery_app

WAITERS = 100
"""Waiters shown, from the head of the queue."""


def list_held(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal)
    held: Counter[tuple[str, str]] = Counter()
    found = _selected(options, backends.each(lambda one: one.holders(options["pattern"])), held)
    matches = partial(fnmatchcase, pat=options["pattern"])
    most = options["limit"]
    others = islice(backends.each(lambda backend: unheld(backend, matches, most)), most)
    rest = partial(_unheld_facts, others)
    backends.write("locks", found, output.holder_facts, output.HOLDER, rest)
    if not terminal.as_json:
        for one in others:
            where = f" of {one.using!r}" if backends.many else ""
            state = "paused" if one.limit and not one.limit.limit else "not held"
            limit = f"limit {_set(one.limit)}, " if one.limit else ""
            counts = f"{one.held} held, " if one.held else ""
            counts += f"{'?' if one.waiters is None else one.waiters} waiting{_parked(one)}"
            terminal.notice(f"{one.name!r}{where} is {state}: {limit}{counts}")
        if len(held) < held.total():
            number = output.counted(held.total(), "holder")
            terminal.notice(f"{output.counted(len(held), 'lock')}, {number}")
    backends.finish()
    if not held and (wanted := _wanted(options)):
        subject = "No lock" if options["pattern"] == "*" else "No held lock"
        raise nothing(f"{subject} {get_text_list(wanted, 'and')}.")
    if not held:
        terminal.notice("No locks are held.")


def _unheld_facts(found: Iterable[Unheld]) -> dict[str, list[dict[str, Any]]]:
    facts: dict[str, list[dict[str, Any]]] = {"limits": [], "queues": []}
    for one in found:
        limit = output.limit_facts(one.limit) if one.limit else {}
        facts["limits" if limit else "queues"].append({**one._asdict(), **limit})
    return facts


def _selected(
    options: dict[str, Any], found: Iterator[Holder], held: Counter[tuple[str, str]]
) -> Iterator[Holder]:
    """Yield the holders that match, in order, and count those of each lock.

    Without ``--sort`` they come as they are read. In a table those of one lock come together.
    """
    if options["older_than"]:
        found = (one for one in found if (one.held_for or 0.0) >= options["older_than"])
    if options["attention"]:
        found = filter(attention_of, found)
    if options["sort"]:
        found = iter(sorted(found, key=output.SORTS[options["sort"]], reverse=options["reverse"]))
    elif options["reverse"]:
        found = reversed(list(found))
    if options["format"] == "table" and (options["sort"] or options["reverse"]):
        found = chain(*operators.by_lock(found).values())
    for one in islice(found, options["limit"]):
        held[one.using, one.name] += 1
        yield one


def _wanted(options: dict[str, Any]) -> list[str]:
    wanted = []
    if options["pattern"] != "*":
        wanted.append(f"matches {options['pattern']!r}")
    if options["older_than"]:
        wanted.append(f"has been held for at least {output.duration(options['older_than'])}")
    if options["attention"]:
        wanted.append("needs attention")
    return wanted


def show(options: dict[str, Any], terminal: Terminal) -> None:
    name = options["name"]
    backends = Backends(options["using"], terminal)
    found = []
    for state, aside in backends.each(partial(_read, name, backends)):
        if aside or state.holders or state.limit or state.queue or state.history:
            found.append((state, aside))
    if terminal.as_json:
        terminal.json_object("locks", (_facts(name, *one) for one in found), backends.not_known)
    else:
        for number, one in enumerate(found):
            if number:
                terminal.say()
            _show(name, *one, terminal)
    backends.finish()
    if not any(state.holders or state.queue for state, _aside in found):
        hint = output.hint_at_pattern(name, "locks list")
        raise nothing(f"Lock {name!r} is not held.{hint}")


def _read(
    name: str, backends: Backends, backend: BaseLockBackend
) -> Iterator[tuple[LockState, list[Aside]]]:
    """Yield what a backend knows of a lock, and its messages that were set aside."""
    noting = partial(backends.noting, backend.alias)
    state, aside = operators.read_lock(backend, name, (WAITERS, 10), lambda _: noting()), []
    if backend.runs_scripts and (app := celery_app()):
        with suppress(Exception):  # of Celery, its settings or the server
            from django_redis_lock.celery.outbox import outbox_of

            aside = operators.set_aside(backend, outbox_of(app), name)
    yield state, aside


def _facts(name: str, one: LockState, aside: list[Aside]) -> dict[str, Any]:
    holders = [
        {**output.holder_facts(each), "life": life, "life_because": why}
        for each in one.holders
        for life, why in [judge(each)]
    ]
    first = holders[0] if holders else {}
    turns = [each._asdict() for each in one.backlogs.turns] if one.backlogs else []
    return {
        "name": name,
        "using": one.using,
        "holder": output.holder_facts(one.holders[0]) if one.holders else None,
        "life": first.get("life"),
        "life_because": first.get("life_because"),
        "holders": holders,
        "limit": one.limit and output.limit_facts(one.limit),
        "waiters": one.waiters,
        "waiting": one.queue and [*map(output.waiter_facts, one.queue[:WAITERS])],
        "backlogs": one.backlogs and {"number": one.backlogs.number, "turns": turns},
        "aside": [each._asdict() for each in aside],
        "history": one.history and [*map(output.entry_facts, one.history)],
    }


def _show(name: str, one: LockState, aside: list[Aside], terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    terminal.say(f"{name} (backend {one.using})", heading)
    for label, value in _particulars(one):
        terminal.say(f"  {label:<12}{value or output.UNKNOWN}")
    if not one.holders:
        paused = "; semaphores of this name are paused" if one.limit and not one.limit.limit else ""
        counts = [f": {each.waiters} waiting{_parked(each)}" for each in one.first if each.waiters]
        terminal.say(f"  Not held{paused}{''.join(counts)}.")
    elif len(one.holders) > 1:
        terminal.say("Holders", heading)
        known = {"NAME", "USING", "SHARED", "WAITERS"}
        columns = [each for each in output.HOLDER if each.heading not in known]
        terminal.table([*columns, *HOLD], one.holders)
    if one.queue:
        terminal.say("Queue, in order of arrival", heading)
        terminal.table(QUEUE, list(enumerate(one.queue[:WAITERS], 1)))
        if one.waiters and one.waiters > WAITERS:
            terminal.say(f"... and {one.waiters - WAITERS} more, {one.waiters} in all")
    _show_parked(one.backlogs, aside, terminal)
    if one.history != []:
        terminal.say("History, newest first", heading)
    if one.history is None:
        terminal.say("  Not known.")
    else:
        terminal.table([*EVENT[:2], *EVENT[4:]], one.history)  # of one lock


def _show_parked(backlogs: records.Backlogs | None, aside: list[Aside], terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    if backlogs:
        terminal.say("Parked tasks wait in a backlog, which takes turns with the other waiters.")
        if any(each.turn for each in backlogs.turns):
            terminal.say("Backlogs, the next turn first", heading)
            terminal.table(BACKLOG, backlogs.turns)
        if more := backlogs.number - len(backlogs.turns):
            terminal.say(f"... and {more} more, {backlogs.number} in all")
    if aside:
        number = output.counted(len(aside), "parked message")
        terminal.say(f"{number} set aside, as no worker could read it", heading)
        terminal.table(output.ASIDE[2:], aside[:5])  # the oldest


def _particulars(one: LockState) -> Iterator[tuple[str, str]]:
    if one.limit:
        kinds = {each.limit is None for each in one.holders}
        yield "limit", _set(one.limit) + ", without effect on this lock" * (kinds == {True})
    alone = len(one.holders) == 1
    for holder in one.holders[:1]:
        if alone:
            yield from _particulars_of(holder)
        if holder.shared:
            yield "shared", sharing(holder)
        waiters = "not known" if holder.waiters is None else str(holder.waiters)
        yield "waiters", waiters + _parked(holder)
        for label, texts in (("marks", holder.marks), ("metadata", holder.metadata)):
            for key, value in texts.items() if alone else ():
                yield label, f"{key} = {value}"


def _particulars_of(holder: Holder) -> Iterator[tuple[str, str]]:
    verdict = judge(holder)
    yield "holder", str(holder)
    if holder.task_id:
        yield "task name", holder.task_name or ""
        yield "task id", holder.task_id
    if holder.host:
        yield "host", holder.host
        yield "pid", str(holder.pid or "")
        yield "thread", holder.thread or ""
    yield "life", f"{verdict.life}: {verdict.why}"
    yield "acquired at", _moment(holder.acquired_at)
    yield "held for", output.duration(holder.held_for)
    if attention := attention_of(holder):
        yield "attention", attention
    yield "lease left", (output.duration(holder.ttl) or "endless") + _renewed(holder, verdict.life)
    yield "expires at", "never" if holder.ttl is None else _moment(holder.expires_at)
    yield "fence", str(holder.fence or "")
    yield "token id", holder.token_id


def _parked(one: Holder | Unheld) -> str:
    return f", {one.parked} of them parked" if one.parked else ""


def _renewed(holder: Holder, life: Liveness) -> str:
    if not holder.auto_renew:
        return ""
    if life in (Liveness.DEAD, Liveness.STOPPED):
        return f", not renewed, as its process is {'gone' if life is Liveness.DEAD else 'stopped'}"
    if holder.max_hold is None:
        return ", renewed while the holder lives"
    return f", renewed until held for {output.duration(holder.max_hold)}"


def _set(limit: Limit) -> str:
    return f"{limit.limit}, set by {limit.by or output.UNKNOWN} at {_moment(limit.at)}"


def _moment(moment: datetime | None) -> str:
    return f"{output.clock(moment)} UTC" if moment else ""


HOLD: list[Column[Holder]] = [
    Column("LIFE", lambda one: judge(one).life),
    Column("TOKEN ID", attrgetter("token_id")),
    Column(
        "METADATA",
        lambda one: ", ".join(f"{key} = {text}" for key, text in one.metadata.items()),
        optional=True,
    ),
]
QUEUE: list[Column[tuple[int, Waiter]]] = [
    Column("", lambda row: str(row[0]), right=True),
    Column("WAITER", lambda row: str(row[1])),
    Column("SINCE (UTC)", lambda row: output.clock(row[1].since)),
    Column("WAITED", lambda row: output.duration(row[1].waited), right=True),
    Column("LEASE", lambda row: output.duration(row[1].lease), right=True),
    Column("SHARED", lambda row: sharing(row[1]), right=True, optional=True),
    Column("PARKED", lambda row: "yes" if row[1].parked else "", optional=True),
    Column("TOKEN ID", lambda row: row[1].token_id or ""),
]


BACKLOG: list[Column[records.Turn]] = [
    Column("TURN", attrgetter("turn")),
    Column("PARKED", lambda one: str(one.parked), right=True),
]


def history(options: dict[str, Any], terminal: Terminal) -> None:
    name, limit = options["name"], options["limit"]
    backends = Backends(options["using"], terminal)
    every = backends.each(lambda backend: backend.history(name, limit))
    found = operators.newest_first(every)[:limit]
    backends.write("events", found, output.entry_facts, EVENT)
    backends.finish()
    if not found and name is not None:
        raise nothing(f"The audit has no events of {name!r}.")
    if not found:
        terminal.notice("The audit has no forced releases or freed locks.")


EVENT: list[Column[AuditEntry]] = [
    Column("AT (UTC)", lambda one: output.clock(one.at)),
    Column("EVENT", attrgetter("event")),
    Column("NAME", attrgetter("name")),
    Column("USING", attrgetter("using")),
    Column("HOLDER", str),
    Column("BY", attrgetter("by")),
    Column("REASON", attrgetter("reason")),
    Column("FENCE", lambda one: str(one.fence or ""), right=True, optional=True),
]
