"""``locks release``, ``limit`` and ``unpark``: what operators change, after showing it."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock import operators
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Column, Terminal, counted, nothing, usage
from django_redis_lock.operators import Liveness, Result, Verdict
from django_redis_lock.protocol.records import Aside, Holder
from django_redis_lock.support.arguments import check_text
from django_redis_lock.support.celery_app import celery_app, import_tasks
from django_redis_lock.support.text import escape_unprintable, without_passwords


def release(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the holders, ask for confirmation, and release exactly those holds."""
    _check(options)
    backends = Backends(options["using"], terminal)
    if not options["dry_run"] and not _asks_reason(options):
        _check_reason(options, backends)
    shown = list(_selected(options, backends))
    missing = _missing(options, shown, backends)
    columns = []
    _demand_token_id(options, shown, backends)
    if options["only_dead"]:
        verdicts = {one.token_id: operators.judge(one) for one in shown}
        columns.append(Column("DEAD BECAUSE", lambda one: verdicts[one].why, key="token_id"))
        shown = _the_dead(shown, verdicts, terminal)
    if options["dry_run"] or not terminal.as_json:
        backends.write_holders(shown, *columns)
    holds = _holds(shown)
    if shown and (options["dry_run"] or options["interactive"]):
        backends.warn_of_unwritable()
    if options["dry_run"]:
        results = [Result.RELEASED] * len(shown)
        if shown:
            terminal.notice(f"Dry run: {holds} would be released.")
    else:
        if shown and options["interactive"]:
            _ask(shown, holds, options, backends)
        results = _release(shown, options, backends)
    if Result.UNAVAILABLE not in results:  # _conclude() reports that with its own exit code
        backends.finish()
    _conclude(results, holds, missing, dry_run=options["dry_run"])


def _holds(shown: list[Holder]) -> str:
    """Return how many locks there are, or holds of locks that several share."""
    number = counted(len(operators.by_lock(shown)), "lock")
    is_shared = any(one.holders > 1 for one in shown)
    return f"{counted(len(shown), 'hold')} of {number}" if is_shared else number


def _demand_token_id(options: dict[str, Any], shown: list[Holder], backends: Backends) -> None:
    """Raise ``CommandError`` after the holders of a named lock that has several."""
    several = [one for one in shown if one.holders > 1]
    if not (options["names"] and several) or options["token_id"] or options["only_dead"]:
        return
    backends.write_holders(several, Column("TOKEN ID"))
    has = f"Lock {several[0].name!r} has {several[0].holders} holders"
    raise usage(f"{has}: pass the --token-id of the one to release.")


def _check(options: dict[str, Any]) -> None:
    ways = [bool(options["names"]), options["match"] is not None, options["all"]]
    if sum(ways) != 1:
        raise usage("Pass exactly one of NAME..., --pattern GLOB or --all.")
    if options["token_id"] and len(options["names"]) != 1:
        raise usage("--token-id requires exactly one NAME.")


def _asks_reason(options: dict[str, Any]) -> bool:
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    asks = options["interactive"] and not options["dry_run"]
    return asks and at_terminal and not options["reason"].strip()


def _check_reason(options: dict[str, Any], backends: Backends) -> None:
    try:
        check_text(options["by"] or "", "--by")
        operators.check_reason(options["reason"], (backend.alias for backend in backends.all))
    except ValueError as error:
        raise usage(str(error)) from error


def _selected(options: dict[str, Any], backends: Backends) -> Iterator[Holder]:
    names, wanted = dict.fromkeys(options["names"]), options["token_id"]
    pattern = "*" if options["match"] is None else options["match"]
    found = backends.each(lambda one: one.holders_of(names) if names else one.holders(pattern))
    return (one for one in found if wanted in (None, one.token_id))


def _missing(options: dict[str, Any], shown: list[Holder], backends: Backends) -> list[str]:
    notice = backends.terminal.notice
    held = {one.name for one in shown}
    token = f" with token id {options['token_id']}" if options["token_id"] else ""
    missing = [name for name in dict.fromkeys(options["names"]) if name not in held]
    for name in missing:
        free = f"Lock {name!r} is not held{token}"
        if len(backends.silent) == len(backends.aliases):
            notice(f"It is not known whether lock {name!r} is held.")
        elif backends.silent:
            notice(f"{free} on the aliases that answered.")
        else:
            notice(f"{free}.{output.hint_at_pattern(name, 'locks release --pattern')}")
    return missing


def _the_dead(
    shown: list[Holder], verdicts: dict[str, Verdict], terminal: Terminal
) -> list[Holder]:
    """Return the dead holders, with a notice why the others are kept."""
    judged: dict[Verdict, list[Holder]] = {}
    for one in shown:
        judged.setdefault(verdicts[one.token_id], []).append(one)
    for (life, why), alike in sorted(judged.items(), key=lambda item: -len(item[1])):
        if life is not Liveness.DEAD:
            each = ", each for this reason" if len(alike) > 1 else ""
            terminal.notice(f"Skipped {_holds(alike)}{each}: {why}.")
    return [one for one in shown if verdicts[one.token_id].life is Liveness.DEAD]


def _ask(shown: list[Holder], holds: str, options: dict[str, Any], backends: Backends) -> None:
    terminal = backends.terminal
    if terminal.as_json:
        for one in shown:
            terminal.notice(f"{one.name}: {one}")
    if _asks_reason(options):
        options["reason"] = terminal.ask("Reason for the audit:", "released")
        _check_reason(options, backends)
    terminal.confirm(f"Release {holds}? The holders keep running.", "released")


def _release(shown: list[Holder], options: dict[str, Any], backends: Backends) -> list[Result]:
    terminal = backends.terminal
    outcomes = operators.release_shown(shown, by=operator(options), reason=options["reason"])
    results = [outcome.result for outcome in outcomes]
    if terminal.as_json:
        terminal.json_object("outcomes", map(output.outcome_facts, outcomes), backends.not_known)
        return results
    style = terminal.style
    for outcome in outcomes:
        holder, ended = str(outcome.holder or ""), "the hold shown has already ended"
        handed_off = f", handed off to {holder}" if holder else ""
        paint, text = {
            Result.RELEASED: (style.SUCCESS, f"released{handed_off}"),
            Result.CHANGED: (style.WARNING, f"not released, the holder has changed to {holder}"),
            Result.GONE: (style.WARNING, f"not released, {ended if holder else 'already free'}"),
            Result.REFUSED: (style.ERROR, f"not released: {outcome.error}"),
            Result.UNAVAILABLE: (style.ERROR, f"outcome not known: {outcome.error}"),
        }[outcome.result]
        terminal.say(f"{outcome.shown.name}: {text}", paint)
    return results


def _conclude(results: list[Result], holds: str, missing: list[str], *, dry_run: bool) -> None:
    released = results.count(Result.RELEASED)
    share = f"Released {released} of {holds}"
    if not_known := results.count(Result.UNAVAILABLE):
        message = f"{share}; the outcome of {not_known} is not known."
        raise CommandError(message, returncode=output.NOT_KNOWN)
    if refused := results.count(Result.REFUSED):
        raise CommandError(f"{share}; the server refused {refused}.")
    if not results:
        raise nothing("There is nothing to release.")
    if released < len(results):
        raise nothing(f"{share}; skipped {len(results) - released} whose holder had changed.")
    if missing:
        done = "would be" if dry_run else "were"
        raise nothing(f"Some of the named locks are not held; the rest {done} released.")


def operator(options: dict[str, Any]) -> str:
    return (options["by"] or "").strip() or system_user()


def system_user() -> str:
    """Return the process's user, from the system rather than the environment."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except ImportError:  # on Windows
        return getpass.getuser()
    except KeyError:  # common in containers
        return f"uid {os.getuid()}"


def limit(options: dict[str, Any], terminal: Terminal) -> None:
    """List the limits that are set, or set or clear one."""
    name, number, clear = options["name"], options["limit"], options["clear"]
    if clear and (name is None or number is not None):
        raise usage("--clear requires NAME and can't be combined with LIMIT.")
    backends = Backends(options["using"], terminal)
    if clear or number is not None:
        _change(name, number, operator(options), backends)
        return
    found = list(backends.each(lambda backend: _rows(backend, name)))
    backends.write("limits", found, LIMIT)
    backends.finish()
    if not found and name is not None:
        raise nothing(f"No limit is set for {name!r}.")
    if not found:
        terminal.notice("No limits are set.")


def _change(name: str, limit: int | None, by: str, backends: Backends) -> None:
    terminal = backends.terminal
    if backends.many:
        raise usage("LOCKS has several aliases: choose one with --using.")
    if backends.alone:
        raise usage("A limit set here would have no effect on other processes.")
    before, rows = None, list[output.Row]()
    literal = "a limit applies to one name, not to a pattern"
    for backend in backends.all:
        with backends.noting(backend.alias):
            before = operators.limit_of(backend, name)
            if before is None and limit is None:
                break
            if hint := output.hint_at_pattern(name, "locks list"):
                terminal.notice(f"{name!r} is taken literally: {literal}.{hint}")
            holders = [] if limit is None else list(backend.holders_of([name]))
            if holders and all(one.limit is None for one in holders):
                way = "as a reader" if holders[0].shared else "exclusively"
                held = f"{holders[0]} holds {name!r} {way}."
                terminal.notice(f"{held} Limits apply to semaphores only.")
            operators.change_limit(backend, name, limit, by=by)
            done = "cleared" if limit is None else f"set to {limit}"
            if terminal.as_json:
                rows = _rows(backend, name)
            else:
                was = before.limit if before else "not set"
                terminal.say(f"{name}: limit {done} (was: {was})", terminal.style.SUCCESS)
    if terminal.as_json:
        backends.write("limits", rows, LIMIT)
    to_set = f"set the limit of {name!r} to {limit}"
    backends.finish(f"clear the limit of {name!r}" if limit is None else to_set)
    if before is None and limit is None:
        raise nothing(f"No limit was set for {name!r}.")


def _rows(backend: BaseLockBackend, name: str | None) -> list[output.Row]:
    limits = [one for one in backend.limits() if name in (None, one.name)]
    held = Counter(holder.name for holder in backend.holders_of(one.name for one in limits))
    return [{**output.facts(one), "held": held[one.name]} for one in limits]


NUMBERS = [output.number("LIMIT"), output.number("HELD")]
LIMIT = [Column("NAME"), Column("USING"), *NUMBERS, Column("BY"), output.AT]


def unpark(options: dict[str, Any], terminal: Terminal) -> None:
    """Send them by the current Celery app, and say which can't be sent, or may not."""
    name, done = options["name"], _restored_or_due(options)
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
        raise usage(f"{which} can't park tasks: only aliases with RedisLockBackend can.")
    backends.all = able
    if options["delete"] and options["interactive"]:
        read = partial(operators.set_aside, outbox=publisher.outbox, name=name or "")
        if aside := list(backends.each(read)):
            if not terminal.as_json:
                backends.write("aside", map(Aside._asdict, aside), output.ASIDE)
            question = f"Delete {counted(len(aside), 'parked message')}? Their tasks will not run."
            terminal.confirm(question, "deleted")
    rows = list(backends.each(partial(_unpark, publisher, options, done, whys)))
    _say_sent(rows, done, backends, is_sent=not publisher.unreachable)
    if name and not options["aside"]:
        _name_reservations(name, backends)
    number = sum(row[done] for row in rows)
    if number or options["due"]:
        _check_sent(f"{counted(number, 'parked task')}{of}", whys, publisher.unreachable)
    backends.finish(f"{'delete' if options['delete'] else 'send'} the parked tasks{of}")
    if not number:
        _say_none_parked(options, terminal, of, here=" of this broker" if rows else "")


def _unpark(
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
        turns = operators.backlogs_of(backend, name).turns
        others = sum(one.parked for one in turns if one.outbox != publisher.outbox)
    failed = [why for lock, why in publisher.put_off if name in (None, lock)]
    whys += failed
    if number or others:
        about = {done: number, "parked": others, "put_off": len(failed)}
        yield {"name": name, "using": backend.alias, **about}


def _restored_or_due(options: dict[str, Any]) -> str:
    """Return what is done, as the JSON says."""
    name, due, aside = options["name"], options["due"], options["aside"]
    ways = due + aside + bool(options["task_id"])
    if ways > 1 or (due and name) or not (name or due or aside) or name == "":
        raise usage("Pass NAME (alone, or with --task-id or --aside), only --aside, or only --due.")
    if options["delete"] and not aside:
        raise usage("--delete requires --aside.")
    restored = "deleted" if options["delete"] else "restored"
    return "due" if due else restored if aside else "unparked"


def _say_sent(rows: list[dict[str, Any]], done: str, backends: Backends, *, is_sent: bool) -> None:
    terminal = backends.terminal
    if terminal.as_json:
        terminal.json_object("locks", rows, backends.not_known)
    sent = {"deleted": "deleted", "due": "sent to the broker"}.get(done, "sent back to the broker")
    for row in rows:
        where = "all locks" if row["name"] is None else row["name"]
        if backends.many:
            where += f" (alias {row['using']})"
        number = row[done] - row["put_off"]
        if number > 0 and is_sent and not terminal.as_json:
            text = f"{where}: {counted(number, 'parked task')} {sent}"
            terminal.say(text, terminal.style.SUCCESS)
        if left := row["parked"]:
            text = f"skipped {counted(left, 'parked task')} of another broker"
            terminal.notice(f"{where}: {text}")


def _check_sent(tasks: str, whys: list[str], unreachable: str) -> None:
    if unreachable:
        why = escape_unprintable(without_passwords(unreachable))
        text = f"{tasks} left the queue, but the broker can't be reached: {why}. "
        text += "The unsent tasks wait on the lock server until a worker sends them."
        raise CommandError(text, returncode=output.NOT_KNOWN)
    if whys:
        text = f"{counted(len(whys), 'parked task')} could not be sent: "
        text += f"{escape_unprintable(whys[0])}. "
        text += "Workers retry every minute, and set aside messages that none of them can read."
        raise CommandError(text)


def _name_reservations(name: str, backends: Backends) -> None:
    """Say which messages in the broker's queue have the lock, as a purge may have removed them."""
    holders = backends.each(lambda backend: backend.holders_of([name]))
    if reserved := [one for one in holders if one.marks.get("state") == "queued"]:
        text = f"{name}: reserved for {counted(len(reserved), 'message')} in the broker's queue, "
        text += f"the first for {reserved[0]}. If the queue was purged, use: locks release "
        text += f"{shlex.quote(name)} --token-id {reserved[0].token_id}"
        backends.terminal.notice(text)


def _say_none_parked(options: dict[str, Any], terminal: Terminal, of: str, here: str) -> None:
    if options["due"]:
        terminal.notice("No parked task is due.")
        return
    if options["aside"]:
        raise nothing(f"No message{of} is set aside.")
    which = f"No task {escape_unprintable(options['task_id'] or '')}".rstrip()
    hint = output.hint_at_pattern(options["name"], "locks list")
    raise nothing(f"{which}{here} is parked for {options['name']!r}.{hint}")
