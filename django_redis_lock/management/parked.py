"""``locks unpark``: parked tasks go to the broker, with their locks or without."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Terminal, counted, nothing, usage
from django_redis_lock.operators import backlogs_of, set_aside
from django_redis_lock.protocol.records import Aside
from django_redis_lock.support.celery_app import celery_app, import_tasks
from django_redis_lock.support.text import escape_unprintable, without_passwords


def unpark(options: dict[str, Any], terminal: Terminal) -> None:
    """Send them by the current Celery app, and say which can't be sent, or may not."""
    name, done = options["name"], _what(options)
    of = f" of {name!r}" if name else ""
    app = celery_app()
    if app is None:
        raise CommandError("No Celery app is loaded: import it in the project's __init__.py.")
    from django_redis_lock.celery.outbox import Publisher

    import_tasks(app)  # messages of a task that is not known can't be read
    publisher, whys = Publisher(app), list[str]()
    backends = Backends(options["using"], terminal)
    able = [one for one in backends.all if one.runs_scripts]
    if backends.all and not able:
        which = ", ".join(f"LOCKS[{one.alias!r}]" for one in backends.all)
        raise usage(f"No task can be parked with {which}: that takes RedisLockBackend.")
    backends.all = able
    if options["delete"] and options["interactive"]:
        _ask(backends, partial(set_aside, outbox=publisher.outbox, name=name or ""))
    rows = list(backends.each(partial(_send, publisher, options, done, whys)))
    _say(rows, done, backends, is_sent=not publisher.unreachable)
    if name and not options["aside"]:
        _name_reservations(name, backends)
    number = sum(row[done] for row in rows)
    if number or options["due"]:
        _check_sent(f"{counted(number, 'parked task')}{of}", whys, publisher.unreachable)
    backends.finish(f"{'delete' if options['delete'] else 'send'} the parked tasks{of}")
    if not number:
        _say_nothing(options, terminal, of, here=" of this broker" if rows else "")


def _send(
    publisher: Any, options: dict[str, Any], done: str, whys: list[str], backend: BaseLockBackend
) -> Iterator[dict[str, Any]]:
    """Yield to how many tasks it was done, how many are of others, and how many can't be sent."""
    name, others = options["name"], 0
    if options["aside"]:
        number = publisher.restore(backend, name or "", delete=options["delete"])
    elif options["due"]:
        publisher.publish_due(backend, attends=True)
        number = publisher.published + len(publisher.put_off)
    else:
        number = publisher.unpark(backend, name, options["task_id"])
        turns = backlogs_of(backend, name).turns
        others = sum(one.parked for one in turns if one.outbox != publisher.outbox)
    failed = [why for lock, why in publisher.put_off if name in (None, lock)]
    whys += failed
    if number or others:
        about = {done: number, "parked": others, "put_off": len(failed)}
        yield {"name": name, "using": backend.alias, **about}


def _what(options: dict[str, Any]) -> str:
    """Return what is done, as the JSON says."""
    name, due, aside = options["name"], options["due"], options["aside"]
    ways = due + aside + bool(options["task_id"])
    if ways > 1 or (due and name) or not (name or due or aside) or name == "":
        raise usage("Give a NAME, with or without --task-id or --aside; or only --aside or --due.")
    if options["delete"] and not aside:
        raise usage("--delete needs --aside.")
    restored = "deleted" if options["delete"] else "restored"
    return "due" if due else restored if aside else "unparked"


def _ask(backends: Backends, aside: Any) -> None:
    if shown := list(backends.each(aside)):
        if not backends.terminal.as_json:
            backends.write("aside", map(Aside._asdict, shown), output.ASIDE)
        question = f"Delete {counted(len(shown), 'parked message')}? Their tasks will not run."
        backends.terminal.confirm(question, "deleted")


def _say(rows: list[dict[str, Any]], done: str, backends: Backends, *, is_sent: bool) -> None:
    terminal = backends.terminal
    if terminal.as_json:
        terminal.json_object("locks", rows, backends.not_known)
    sent = {"deleted": "deleted", "due": "sent to the broker"}.get(done, "sent back to the broker")
    for row in rows:
        where = "all locks" if row["name"] is None else row["name"]
        if backends.many:
            where += f" (backend {row['using']})"
        number = row[done] - row["put_off"]
        if number > 0 and is_sent and not terminal.as_json:
            text = f"{where}: {counted(number, 'parked task')} {sent}"
            terminal.say(text, terminal.style.SUCCESS)
        if left := row["parked"]:
            text = f"{counted(left, 'parked task')} of another broker not touched"
            terminal.notice(f"{where}: {text}")


def _check_sent(tasks: str, whys: list[str], unreachable: str) -> None:
    """Raise ``CommandError`` if some could not be sent."""
    if unreachable:
        raise CommandError(
            f"{tasks} left the queue, but the broker can't be reached: "
            f"{escape_unprintable(without_passwords(unreachable))}. "
            "A worker sends what was not sent as soon as it can.",
            returncode=output.NOT_KNOWN,
        )
    if whys:
        raise CommandError(
            f"{counted(len(whys), 'parked task')} could not be sent: "
            f"{escape_unprintable(whys[0])}. "
            "Workers try again every minute, and set aside what none of them can read."
        )


def _name_reservations(name: str, backends: Backends) -> None:
    """Say which messages in the broker's queue have the lock, as a purge may have removed them."""
    holders = backends.each(lambda backend: backend.holders_of([name]))
    if reserved := [one for one in holders if one.marks.get("state") == "queued"]:
        messages, release = counted(len(reserved), "message"), f"locks release {shlex.quote(name)}"
        backends.terminal.notice(
            f"{name}: held for {messages} in the broker's queue, the first for {reserved[0]}. "
            f"If the queue was purged, use: {release} --token-id {reserved[0].token_id}"
        )


def _say_nothing(options: dict[str, Any], terminal: Terminal, of: str, here: str) -> None:
    name, task = options["name"], escape_unprintable(options["task_id"] or "")
    if options["due"]:
        terminal.notice("No parked task is due.")
    elif options["aside"]:
        raise nothing(f"No message{of} is set aside.")
    else:
        which, hint = f"No task {task}".rstrip(), output.hint_at_pattern(name, "locks list")
        raise nothing(f"{which}{here} is parked for {name!r}.{hint}")
