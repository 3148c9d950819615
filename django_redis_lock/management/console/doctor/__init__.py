"""``locks doctor``: checks whether the servers are fit for locks.

``aliases`` examines an entry of ``LOCKS``, and ``examination`` one server. The examinations are in
``settings``, ``server``, ``resources``, ``access``, ``services`` and ``permissions``, by subject.
``quorum`` and ``sharing`` compare servers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.management.console.doctor.aliases import examine_aliases
from django_redis_lock.management.console.doctor.targets import Finding
from django_redis_lock.management.console.selection import aliases_of
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.support.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Examine the servers and the leases of Celery tasks, and report the findings."""
    findings: list[tuple[str, Finding]] = []

    def noted() -> Iterator[tuple[str, Finding]]:
        for using, finding in examine_aliases(aliases_of(options["using"])):
            findings.append((using, finding))
            yield using, finding

    if terminal.as_json:
        terminal.json_object("findings", (_facts(using, finding) for using, finding in noted()))
    else:
        _say(noted(), terminal)
    warned = options["fail_level"] == "warn"
    bad = ("fail", "warn") if warned else ("fail",)
    count = sum(finding.status in bad for _, finding in findings)
    if count:
        what = "failed or warned" if warned else "failed"
        raise CommandError(f"{count} of {len(findings)} examinations {what}.")


def _facts(using: str, finding: Finding) -> dict[str, Any]:
    return {"using": using or None, **finding._asdict(), "server": finding.server or None}


def _say(findings: Iterator[tuple[str, Finding]], terminal: Terminal) -> None:
    style = terminal.style
    paint = {"ok": style.SUCCESS, "warn": style.WARNING, "fail": style.ERROR}
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
