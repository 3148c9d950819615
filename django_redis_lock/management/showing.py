"""``locks list``, ``show`` and ``history``: what is held, a lock in detail, and the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice
from typing import Any

from django.utils.text import get_text_list

from django_redis_lock import operators
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Column, Row, Terminal, nothing
from django_redis_lock.operators import Liveness, LockState
from django_redis_lock.protocol.records import Aside, Holder, Limit, Unheld
from django_redis_lock.support.celery_app import celery_app

WAITERS = 100
"""Waiters shown, from the head of the queue."""
MOST_FIRST = ("held", "waiters", "fence")
"""Orders in which the highest comes first."""
OF_LOCK = ("name", "using")


def list_held(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal)
    held: Counter[tuple[str, str]] = Counter()
    found = _selected(options, backends.each(lambda one: one.holders(options["pattern"])), held)
    matches = partial(fnmatchcase, pat=options["pattern"])
    most = options["limit"]
    others = islice(backends.each(lambda one: operators.unheld(one, matches, most)), most)
    if terminal.as_json:
        facts = map(output.holder_facts, found)
        terminal.json_object("locks", facts, lambda: _unheld_facts(others) | backends.not_known())
    else:
        backends.write_holders(found)
        for one in others:
            where = f" on {one.using!r}" if backends.many else ""
            state = "no permits held" if one.limit else "not held"
            if one.limit and not one.limit.limit:
                state = "paused"
            limit = f"limit {_set(one.limit)}, " if one.limit else ""
            counts = f"{one.held} held, " if one.held else ""
            counts += f"{'?' if one.waiters is None else one.waiters} waiting{_parked(one)}"
            terminal.notice(f"{one.name!r}{where}: {state}, {limit}{counts}")
        if len(held) < held.total():
            number = output.counted(held.total(), "holder")
            terminal.notice(f"{output.counted(len(held), 'lock')}, {number}")
    backends.finish()
    if not held and (wanted := _wanted(options)):
        subject = "No lock" if options["pattern"] == "*" else "No held lock"
        raise nothing(f"{subject} {get_text_list(wanted, 'and')}.")
    if not held:
        terminal.notice("No locks are held.")


def _unheld_facts(found: Iterable[Unheld]) -> Row:
    facts: dict[str, list[Row]] = {"limits": [], "queues": []}
    for one in found:
        limit = output.facts(one.limit) if one.limit else {}
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
        found = filter(operators.attention_of, found)
    if options["sort"]:
        reverse = (options["sort"] in MOST_FIRST) != options["reverse"]
        found = iter(sorted(found, key=operators.ORDERS[options["sort"]], reverse=reverse))
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
    found: list[tuple[LockState, Row]] = []
    for state, aside in backends.each(partial(_read, name, backends)):
        if aside or state.holders or state.limit or state.queue or state.history:
            found.append((state, _facts(name, state, aside)))
    if terminal.as_json:
        terminal.json_object("locks", (facts for _, facts in found), backends.not_known)
    else:
        for number, one in enumerate(found):
            if number:
                terminal.say()
            _show(*one, terminal)
    backends.finish()
    if not any(state.holders or state.queue for state, _ in found):
        hint = output.hint_at_pattern(name, "locks list")
        raise nothing(f"Lock {name!r} is not held.{hint}")


def _read(
    name: str, backends: Backends, backend: BaseLockBackend
) -> Iterator[tuple[LockState, list[Aside]]]:
    """Yield what a backend knows of a lock, and its messages that were set aside."""
    state, aside = operators.read_lock(backend, name, WAITERS, 10), []
    for error in state.unknown.values():
        with backends.noting(backend.alias):
            raise error
    if backend.runs_scripts and (app := celery_app()):
        with suppress(Exception):  # of Celery, its settings or the server
            from django_redis_lock.celery.outbox import outbox_of

            aside = operators.set_aside(backend, outbox_of(app), name)
    yield state, aside


def _facts(name: str, one: LockState, aside: list[Aside]) -> Row:
    holders = []
    for each in one.holders:
        life, why = operators.judge(each)
        holders.append({**output.holder_facts(each), "life": life, "life_because": why})
    first = holders[0] if holders else {}
    waiting = [{"waiter": str(each), **output.facts(each, OF_LOCK)} for each in one.queue or ()]
    turns = [each._asdict() for each in one.backlogs.turns] if one.backlogs else []
    return {
        "name": name,
        "using": one.using,
        "holder": output.holder_facts(one.holders[0]) if one.holders else None,
        "life": first.get("life"),
        "life_because": first.get("life_because"),
        "holders": holders,
        "limit": one.limit and output.facts(one.limit),
        "waiters": one.waiters,
        "waiting": None if one.queue is None else waiting,
        "backlogs": one.backlogs and {"number": one.backlogs.number, "turns": turns},
        "aside": [each._asdict() for each in aside],
        "history": one.history and [*map(output.entry_facts, one.history)],
    }


def _show(one: LockState, facts: Row, terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    terminal.say(f"{facts['name']} (alias {one.using})", heading)
    for label, value in _particulars(one, facts["holders"]):
        terminal.say(f"  {label:<12}{value or output.UNKNOWN}")
    if not one.holders:
        paused = "; semaphores of this name are paused" if one.limit and not one.limit.limit else ""
        counts = [f": {each.waiters} waiting{_parked(each)}" for each in one.first if each.waiters]
        terminal.say(f"  Not held{paused}{''.join(counts)}.")
    elif len(one.holders) > 1:
        terminal.say("Holders", heading)
        known = {"NAME", "USING", "SHARED", "WAITERS"}
        columns = [each for each in output.HOLDER if each.heading not in known]
        terminal.table([*columns, *HOLD], facts["holders"])
    if one.queue:
        terminal.say("Queue, in order of arrival", heading)
        rows = [{**each, "shared": output.sharing_of(each)} for each in facts["waiting"]]
        terminal.table(QUEUE, [{"": number, **row} for number, row in enumerate(rows, 1)])
        if one.waiters and one.waiters > WAITERS:
            terminal.say(f"... and {one.waiters - WAITERS} more, {one.waiters} in all")
    _show_parked(facts["backlogs"], facts["aside"], terminal)
    if one.history != []:
        terminal.say("History, newest first", heading)
    if one.history is None:
        terminal.say("  Not known.")
    else:
        terminal.table([*EVENT[:2], *EVENT[4:]], facts["history"])  # of one lock


def _show_parked(backlogs: Row | None, aside: list[Row], terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    if backlogs:
        number, turns = backlogs["number"], backlogs["turns"]
        terminal.say("Parked tasks wait in a backlog, which takes turns with the other waiters.")
        if any(each["turn"] for each in turns):
            terminal.say("Backlogs, the next turn first", heading)
            terminal.table(BACKLOG, turns)
        if more := number - len(turns):
            terminal.say(f"... and {more} more, {number} in all")
    if aside:
        number = output.counted(len(aside), "parked message")
        terminal.say(f"Set aside: {number} that no worker could read", heading)
        terminal.table(output.ASIDE[2:], aside[:5])  # the oldest


def _particulars(one: LockState, holders: list[Row]) -> Iterator[tuple[str, str]]:
    if one.limit:
        kinds = {each.limit is None for each in one.holders}
        yield "limit", _set(one.limit) + ", without effect on its holder" * (kinds == {True})
    for row in holders[:1]:
        alone = len(holders) == 1
        yield from _particulars_of(row) if alone else ()
        if row["shared"]:
            yield "shared", output.sharing_of(row)
        yield "waiters", (output.text(row["waiters"]) or "not known") + _parked(one.holders[0])
        for label in ("marks", "metadata") if alone else ():
            yield from ((label, f"{key} = {value}") for key, value in row[label].items())


def _particulars_of(row: Row) -> Iterator[tuple[str, str]]:
    labels = ["holder", *["task name", "task id"] * bool(row["task_id"])]
    for label in [*labels, *["host", "pid", "thread"] * bool(row["host"])]:
        yield label, output.text(row[label.replace(" ", "_")])
    yield "life", f"{row['life']}: {row['life_because']}"
    yield "acquired at", _moment(row["acquired_at"])
    yield "held for", output.duration(row["held_for"])
    if row["attention"]:
        yield "attention", row["attention"]
    yield "lease left", (output.duration(row["lease_left"]) or "no expiry") + _renewed(row)
    yield "expires at", "never" if row["lease_left"] is None else _moment(row["expires_at"])
    yield "fence", output.text(row["fence"])
    yield "token id", row["token_id"]


def _parked(one: Holder | Unheld) -> str:
    return f" ({one.parked} of them parked)" if one.parked else ""


def _renewed(row: Row) -> str:
    if not row["auto_renew"]:
        return ""
    if row["life"] in (Liveness.DEAD, Liveness.STOPPED):
        state = "gone" if row["life"] == "dead" else "stopped"
        return f", not renewed, because its process is {state}"
    if row["max_hold"] is None:
        return ", renewed while the holder lives"
    return f", renewed until held for {output.duration(row['max_hold'])}"


def _set(limit: Limit) -> str:
    return f"{limit.limit} (set by {limit.by or output.UNKNOWN} at {_moment(limit.at)})"


def _moment(moment: datetime | None) -> str:
    return f"{output.clock(moment)} UTC" if moment else ""


HOLD = [
    Column("LIFE"),
    Column("TOKEN ID"),
    Column("METADATA", lambda texts: ", ".join(map(" = ".join, texts.items())), optional=True),
]
QUEUE = [
    output.number(""),
    Column("WAITER"),
    Column("SINCE (UTC)", output.clock),
    output.number("WAITED", output.duration),
    output.number("LEASE", output.duration),
    output.number("SHARED", optional=True),
    Column("PARKED", lambda parked: "yes" if parked else "", optional=True),
    Column("TOKEN ID"),
]
BACKLOG = [Column("TURN"), output.number("PARKED")]


def history(options: dict[str, Any], terminal: Terminal) -> None:
    name, limit = options["name"], options["limit"]
    backends = Backends(options["using"], terminal)
    every = backends.each(lambda backend: backend.history(name, limit))
    found = operators.newest_first(every)[:limit]
    backends.write("events", map(output.entry_facts, found), EVENT)
    backends.finish()
    if not found and name is not None:
        raise nothing(f"The audit has no events of {name!r}.")
    if not found:
        terminal.notice("The audit has no forced releases or freed locks.")


EVENT = [
    output.AT,
    *map(Column, ("EVENT", "NAME", "USING", "HOLDER", "BY", "REASON")),
    output.number("FENCE", optional=True),
]
