"""``locks release``: take locks from their holders, after a look at who that is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.adminlog import user_named
from django_redis_lock.audit import check_text
from django_redis_lock.breaking import Outcome, Result, release_shown
from django_redis_lock.console import facts
from django_redis_lock.console.listing import columns
from django_redis_lock.console.liveness import Verdict, is_place, judge
from django_redis_lock.console.places import judge_places
from django_redis_lock.console.selection import USAGE, Backends, nothing
from django_redis_lock.console.table import Column
from django_redis_lock.console.terminal import Terminal
from django_redis_lock.records import Holder
from django_redis_lock.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the holders, ask, and release exactly those that were shown."""
    _check(options)
    backends = Backends(options["using"], terminal)
    shown = list(_selected(options, backends))
    missing = _missing(options, shown)
    for name in missing:
        terminal.notice(f"Nobody holds {visible(name)!r}{_with_token(options)}.")
    verdicts: dict[str, Verdict] = {}
    if options["only_dead"] or options["only_gone"]:
        judged = (judge_places if options["only_gone"] else judge)(shown, terminal.notice)
        verdicts = {one.token_id: verdict for one, verdict in judged}
        shown = _the_dead(shown, verdicts, options, terminal)
    if not terminal.as_json:
        terminal.table(_columns(verdicts, options, many=backends.many), shown)
    if options["dry_run"]:
        results = _rehearse(shown, terminal)
    else:
        if shown and options["interactive"]:
            _ask(shown, terminal)
        results = _release(shown, options, terminal)
    backends.finish()
    _conclude(results, missing, dry_run=options["dry_run"])


def _check(options: dict[str, Any]) -> None:
    """Raise ``CommandError`` for options that make no sense together."""
    ways = [bool(options["names"]), options["match"] is not None, options["all"]]
    if sum(ways) != 1 and not (options["queued"] and sum(ways) == 0):
        raise CommandError(
            "Say what to release: names, or --pattern GLOB, or --all; one of them. "
            "Or --queued, alone or with one of them.",
            returncode=USAGE,
        )
    if options["only_dead"] and options["only_gone"]:
        raise CommandError(
            "--only-dead is about processes and --only-gone about messages; one of them.",
            returncode=USAGE,
        )
    if options["token_id"] and len(options["names"]) != 1:
        raise CommandError("--token-id goes with exactly one name.", returncode=USAGE)
    try:
        check_text(options["reason"], "--reason")
    except ValueError as error:
        raise CommandError(str(error), returncode=USAGE) from error


def _selected(options: dict[str, Any], backends: Backends) -> Iterator[Holder]:
    if options["names"]:
        found = backends.holders_of(dict.fromkeys(options["names"]))
    else:
        found = backends.holders("*" if options["match"] is None else options["match"])
    wanted = options["token_id"]
    return (
        one
        for one in found
        if wanted in (None, one.token_id) and (is_place(one) or not options["queued"])
    )


def _missing(options: dict[str, Any], shown: list[Holder]) -> list[str]:
    held = {one.name for one in shown}
    return [name for name in dict.fromkeys(options["names"]) if name not in held]


def _with_token(options: dict[str, Any]) -> str:
    words = f" with token id {visible(options['token_id'])}" if options["token_id"] else ""
    return words + (" for a message in a queue" if options["queued"] else "")


def _columns(
    verdicts: dict[str, Verdict], options: dict[str, Any], *, many: bool
) -> list[Column[Holder]]:
    found = columns(many=many)
    if verdicts:
        heading = "GONE BECAUSE" if options["only_gone"] else "DEAD BECAUSE"
        found.append(Column(heading, lambda one: verdicts[one.token_id].why))
    return found


def _the_dead(
    shown: list[Holder],
    verdicts: dict[str, Verdict],
    options: dict[str, Any],
    terminal: Terminal,
) -> list[Holder]:
    dead = [one for one in shown if verdicts[one.token_id].dead]
    if len(dead) < len(shown):
        others = _count(len(shown) - len(dead))
        why = "holders live or can't be told to be dead"
        if options["only_gone"]:
            why = "messages are there or can't be told to be gone"
        terminal.notice(f"{others} left alone, whose {why}.")
    return dead


def _rehearse(shown: list[Holder], terminal: Terminal) -> list[Result]:
    if terminal.as_json:
        terminal.json_array(map(facts.holder_facts, shown))
    terminal.notice(f"{_count(len(shown))} would be released; with --dry-run none is.")
    return [Result.RELEASED] * len(shown)


def _ask(shown: list[Holder], terminal: Terminal) -> None:
    """Raise ``CommandError`` unless somebody says yes."""
    if terminal.as_json:
        for one in shown:
            terminal.notice(f"{visible(one.name)}: {facts.who(one)}")
    if not terminal.confirm(f"Release {_count(len(shown))}? The holders are not stopped."):
        raise CommandError("Declined: nothing was released. (--noinput does not ask.)")


def _release(shown: list[Holder], options: dict[str, Any], terminal: Terminal) -> list[Result]:
    by = system_user()
    outcomes = release_shown(shown, by=by, reason=options["reason"], user=user_named(by))
    results: list[Result] = []

    def noted() -> Iterator[Outcome]:
        for outcome in outcomes:
            results.append(outcome.result)
            yield outcome

    if terminal.as_json:
        terminal.json_array(map(facts.outcome_facts, noted()))
    else:
        _say(noted(), terminal)
    return results


def _conclude(results: list[Result], missing: list[str], *, dry_run: bool) -> None:
    """Raise ``CommandError`` where not everything that was asked for was done."""
    released = results.count(Result.RELEASED)
    if Result.UNAVAILABLE in results:
        total = _count(len(results))
        raise CommandError(f"{released} of {total} released; of others it is not known.")
    if not results:
        raise nothing("There is nothing to release.")
    if released < len(results):
        raise nothing(f"{released} of {_count(len(results))} released; the others were left alone.")
    if missing:
        done = "would be" if dry_run else "was"
        raise nothing(f"Not every lock that was named is held; what is held {done} released.")


def _say(outcomes: Iterable[Outcome], terminal: Terminal) -> None:
    for outcome in outcomes:
        name = visible(outcome.shown.name)
        style = terminal.style.SUCCESS
        if outcome.result is Result.RELEASED:
            text = f"{name}: released" + (
                f", and handed to {facts.who(outcome.holder)}" if outcome.holder else ""
            )
        elif outcome.result is Result.CHANGED:
            assert outcome.holder
            style = terminal.style.WARNING
            text = f"{name}: left alone, for it changed hands: {facts.who(outcome.holder)} has it"
        elif outcome.result is Result.GONE:
            style = terminal.style.WARNING
            text = f"{name}: was free already"
        else:
            style = terminal.style.ERROR
            text = f"{name}: not known: {visible(outcome.error)}"
        terminal.say(style(text))


def _count(number: int) -> str:
    return f"{number} lock" if number == 1 else f"{number} locks"


def system_user() -> str:
    """Return the name of the user whose process this is, by the system and not by its variables."""
    uid = os.getuid() if hasattr(os, "getuid") else None
    if uid is None:
        import getpass

        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in many containers
        return f"uid {uid}"
