"""``locks release``: force releases, after showing the holders."""

from __future__ import annotations

import getpass
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock import operators
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Column, Terminal, counted, nothing, usage
from django_redis_lock.operators import Life, Result, Verdict
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import check_text
from django_redis_lock.support.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the holders, ask for confirmation, and release exactly those holds."""
    _check(options)
    backends = Backends(options["using"], terminal)
    if not _asks_reason(options):
        _check_reason(options, backends)
    shown = list(_selected(options, backends))
    missing = _missing(options, shown, backends)
    columns = [*output.HOLDER]
    _demand_token_id(options, shown, backends)
    if options["only_dead"]:
        verdicts = {one.token_id: operators.judge(one) for one in shown}
        columns.append(Column("DEAD BECAUSE", lambda one: verdicts[one.token_id].why))
        shown = _the_dead(shown, verdicts, terminal)
    if options["dry_run"] or not terminal.as_json:
        backends.write("locks", shown, output.holder_facts, columns, operators.attention_of)
    if shown and (options["dry_run"] or options["interactive"]):
        backends.warn_of_unwritable()
    if options["dry_run"]:
        results = [Result.RELEASED] * len(shown)
        terminal.notice(f"Dry run: {counted(len(shown), 'lock')} would be released.")
    else:
        if shown and options["interactive"]:
            _ask(shown, options, backends)
        results = _release(shown, options, backends)
    if Result.UNAVAILABLE not in results:  # _conclude() reports that with its own exit code
        backends.finish()
    _conclude(results, missing, dry_run=options["dry_run"])


def _demand_token_id(options: dict[str, Any], shown: list[Holder], backends: Backends) -> None:
    """Raise ``CommandError`` after the holders of a named lock that has several."""
    several = [one for one in shown if one.holders > 1]
    if not (options["names"] and several) or options["token_id"] or options["only_dead"]:
        return
    columns = [*output.HOLDER, Column("TOKEN ID", lambda one: one.token_id)]
    backends.write("locks", several, output.holder_facts, columns, operators.attention_of)
    raise usage(
        f"Lock {visible(several[0].name)!r} has {several[0].holders} holders: "
        f"give the --token-id of the one to release."
    )


def _check(options: dict[str, Any]) -> None:
    ways = [bool(options["names"]), options["match"] is not None, options["all"]]
    if sum(ways) != 1:
        raise usage(
            "Specify what to release: names, --pattern GLOB or --all, but only one of them."
        )
    if options["token_id"] and len(options["names"]) != 1:
        raise usage("--token-id needs exactly one name.")
    _check_text(options["reason"], "--reason")
    _check_text(options["by"] or "", "--by")


def _check_text(text: str, option: str) -> None:
    try:
        check_text(text, option)
    except ValueError as error:
        raise usage(str(error)) from error


def _asks_reason(options: dict[str, Any]) -> bool:
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    asks = options["interactive"] and not options["dry_run"]
    return asks and at_terminal and not options["reason"].strip()


def _check_reason(options: dict[str, Any], backends: Backends) -> None:
    if options["dry_run"] or options["reason"].strip():
        return
    if using := operators.requires_reason(backend.alias for backend in backends.all):
        raise usage(
            f"Give a --reason: LOCKS[{visible(using)!r}]['OPERATORS'] has 'REASON_REQUIRED': True."
        )


def _selected(options: dict[str, Any], backends: Backends) -> Iterator[Holder]:
    pattern = "*" if options["match"] is None else options["match"]

    def ask(backend: BaseLockBackend) -> Iterable[Holder]:
        if names := dict.fromkeys(options["names"]):
            return backend.holders_of(names)
        return backend.holders(pattern)

    wanted = options["token_id"]
    return (one for one in backends.each(ask) if wanted in (None, one.token_id))


def _missing(options: dict[str, Any], shown: list[Holder], backends: Backends) -> list[str]:
    notice = backends.terminal.notice
    held = {one.name for one in shown}
    token = f" with token id {visible(options['token_id'])}" if options["token_id"] else ""
    missing = [name for name in dict.fromkeys(options["names"]) if name not in held]
    for name in missing:
        free = f"Lock {visible(name)!r} is not held{token}"
        if len(backends.silent) == len(backends.aliases):
            notice(f"Whether lock {visible(name)!r} is held is not known.")
        elif backends.silent:
            notice(f"{free}, as far as is known.")
        else:
            notice(f"{free}.{output.hint_at_pattern(name, 'locks release --pattern')}")
    return missing


def _the_dead(
    shown: list[Holder], verdicts: dict[str, Verdict], terminal: Terminal
) -> list[Holder]:
    """Return the dead holders, with a notice why the others are kept."""
    judged = (verdicts[one.token_id] for one in shown)
    others = Counter(verdict for verdict in judged if verdict.life is not Life.DEAD)
    for (life, why), number in others.most_common():
        doubt = " as not known to be gone" if life is Life.UNKNOWN else ""
        each = "each " if number > 1 else ""
        terminal.notice(f"{counted(number, 'lock')} kept{doubt}, {each}because {why}.")
    return [one for one in shown if verdicts[one.token_id].life is Life.DEAD]


def _ask(shown: list[Holder], options: dict[str, Any], backends: Backends) -> None:
    terminal = backends.terminal
    if terminal.as_json:
        for one in shown:
            terminal.notice(f"{visible(one.name)}: {one}")
    try:
        if _asks_reason(options):
            options["reason"] = terminal.ask("Reason for the audit:")
            _check_text(options["reason"], "The reason")
            _check_reason(options, backends)
        question = f"Release {counted(len(shown), 'lock')}? The holders are not stopped."
        agreed = terminal.confirm(question)
    except KeyboardInterrupt:
        text = "Interrupted: nothing was released."
        raise CommandError(text, returncode=output.INTERRUPTED) from None
    if not agreed:
        raise CommandError("Declined: nothing was released. Use --noinput to skip the question.")


def _release(shown: list[Holder], options: dict[str, Any], backends: Backends) -> list[Result]:
    terminal = backends.terminal
    outcomes = operators.release_shown(shown, by=operator(options), reason=options["reason"])
    results = [outcome.result for outcome in outcomes]
    if terminal.as_json:
        terminal.json_object("outcomes", map(output.outcome_facts, outcomes), backends.not_known)
        return results
    style = terminal.style
    for outcome in outcomes:
        holder = str(outcome.holder or "")
        handed_off = f", and handed off to {holder}" if holder else ""
        paint, text = {
            Result.RELEASED: (style.SUCCESS, f"released{handed_off}"),
            Result.CHANGED: (style.WARNING, f"kept, because the holder changed to {holder}"),
            Result.GONE: (style.WARNING, "this hold has ended" if holder else "already free"),
            Result.REFUSED: (style.ERROR, f"not released: {visible(outcome.error)}"),
            Result.UNAVAILABLE: (style.ERROR, f"outcome not known: {visible(outcome.error)}"),
        }[outcome.result]
        terminal.say(paint(f"{visible(outcome.shown.name)}: {text}"))
    return results


def _conclude(results: list[Result], missing: list[str], *, dry_run: bool) -> None:
    released, not_known, refused = map(
        results.count, (Result.RELEASED, Result.UNAVAILABLE, Result.REFUSED)
    )
    share = f"{released} of {counted(len(results), 'lock')} released"
    if not_known:
        message = f"{share}; the outcome of {not_known} is not known."
        raise CommandError(message, returncode=output.NOT_KNOWN)
    if refused:
        raise CommandError(f"{share}; the server refused {refused}.")
    if not results:
        raise nothing("There is nothing to release.")
    if released < len(results):
        raise nothing(f"{share}; {len(results) - released} had changed.")
    if missing:
        done = "would be" if dry_run else "were"
        raise nothing(f"Some of the named locks are not held; the rest {done} released.")


def operator(options: dict[str, Any]) -> str:
    """Return who does it, as ``--by`` says."""
    return (options["by"] or "").strip() or system_user()


def system_user() -> str:
    """Return the name of the process's user, from the system rather than the environment."""
    try:
        import pwd
    except ImportError:  # on Windows
        return getpass.getuser()
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # common in containers
        return f"uid {uid}"
