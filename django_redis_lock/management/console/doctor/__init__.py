"""``locks doctor``: checks whether the servers are fit for locks.

``examination`` lists the examinations of one server, each a function in the module of its subject;
``quorum`` and ``sharing`` compare servers; ``entry``, ``leases`` and ``project`` look at settings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.management.console.doctor.aliases import examine_aliases
from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.selection import USAGE
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.support.text import visible, without_passwords


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Examine the servers and the leases of Celery tasks, and report the findings."""
    findings: list[tuple[str, Finding]] = []

    def noted() -> Iterator[tuple[str, Finding]]:
        for using, finding in examine_aliases(_aliases(options["using"])):
            findings.append((using, finding))
            yield using, finding

    if terminal.as_json:
        terminal.json_object("findings", (_facts(using, finding) for using, finding in noted()))
    else:
        _say(noted(), terminal)
    level = options.get("fail_level") or FAIL
    bad = {FAIL, level}
    count = sum(finding.status in bad for _, finding in findings)
    if count:
        what = "failed" if level == FAIL else "failed or warned"
        raise CommandError(f"{count} of {len(findings)} examinations {what}.")


def _aliases(using: str | None) -> list[str]:
    try:
        known = list(locks)
    except InvalidLockBackend as error:
        raise CommandError(without_passwords(str(error))) from error
    if using and using not in known:
        there = ", ".join(map(repr, known)) or "none"
        raise CommandError(
            f"There is no alias {using!r} in LOCKS; there are {there}.", returncode=USAGE
        )
    return [using] if using else known


def _facts(using: str, finding: Finding) -> dict[str, Any]:
    return {"using": using or None, **finding._asdict(), "server": finding.server or None}


def _say(findings: Iterator[tuple[str, Finding]], terminal: Terminal) -> None:
    style = terminal.style
    paint = {OK: style.SUCCESS, WARN: style.WARNING, FAIL: style.ERROR}
    heading = None
    for using, finding in findings:
        if using != heading:
            heading = using
            title = f"LOCKS[{visible(using)!r}]" if using else "Celery"
            terminal.say(style.MIGRATE_HEADING(title))
        first = f"  {finding.status:<5} {finding.check:<12} "
        text = _wrapped(visible(finding.found), first, terminal)
        terminal.say(text.replace(finding.status, paint[finding.status](finding.status), 1))
        if finding.remedy:
            arrow = " " * (len(first) - 3) + "-> "
            terminal.say(_wrapped(visible(finding.remedy), arrow, terminal))


def _wrapped(text: str, first: str, terminal: Terminal) -> str:
    if terminal.width is None:
        return first + text
    return textwrap.fill(
        text,
        max(terminal.width, len(first) + 20),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
