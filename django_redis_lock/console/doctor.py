"""``locks doctor``: is the server of the locks fit for them?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.console.findings import FAIL, OK, WARN, Finding
from django_redis_lock.console.leases import examine_leases
from django_redis_lock.console.selection import Backends
from django_redis_lock.console.server import examine_server
from django_redis_lock.console.terminal import Terminal
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.text import visible, without_passwords

PRODUCTION = 'Write "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend" for production.'


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Examine the servers, and the leases of Celery tasks; say what is wrong with them."""
    backends = Backends(options["using"], terminal)
    findings: list[tuple[str, Finding]] = []

    def noted() -> Iterator[tuple[str, Finding]]:
        for using, finding in _examine(backends.all):
            findings.append((using, finding))
            yield using, finding

    if terminal.as_json:
        terminal.json_array(_facts(using, finding) for using, finding in noted())
    else:
        _say(noted(), terminal)
    failed = sum(finding.status == FAIL for _, finding in findings)
    if failed:
        raise CommandError(f"{failed} of {len(findings)} examinations failed.")


def _examine(backends: list[BaseLockBackend]) -> Iterator[tuple[str, Finding]]:
    for backend in backends:
        for finding in _examine_backend(backend):
            yield backend.alias, finding
    for finding in examine_leases():
        yield "", finding


def _examine_backend(backend: BaseLockBackend) -> Iterator[Finding]:
    yield from _examine_settings(backend)
    if isinstance(backend, RedisLockBackend):
        try:
            yield from examine_server(backend)
        except InvalidLockBackend as error:
            yield Finding(FAIL, "server", without_passwords(str(error)), "Mend LOCKS.")
    elif isinstance(backend, LocMemLockBackend):
        yield Finding(WARN, "server", "none: other processes have locks of their own", PRODUCTION)
    elif isinstance(backend, DummyLockBackend):
        yield Finding(WARN, "server", "none: this backend excludes nobody", PRODUCTION)
    else:
        yield _examine_stranger(backend)


def _examine_stranger(backend: BaseLockBackend) -> Finding:
    """Ask a backend of which nothing is known here whether it answers at all."""
    kind = type(backend).__name__
    try:
        backend.holder("django-redis-lock")
    except (LockError, InvalidLockBackend) as error:
        return Finding(FAIL, "server", without_passwords(str(error)), "Mend LOCKS, or the server.")
    return Finding(OK, "server", f"answers; of {kind} there is no more to examine")


def _examine_settings(backend: BaseLockBackend) -> Iterator[Finding]:
    """Turn the system checks of this entry of LOCKS into findings, the shared cache included."""
    messages = backend.check()
    for message in messages:
        yield Finding(
            FAIL if message.is_serious() else WARN,
            "settings",
            without_passwords(f"{message.msg} ({message.id})"),
            message.hint or "",
        )
    if not messages:
        yield Finding(OK, "settings", "no cache of this project shares the database")


def _facts(using: str, finding: Finding) -> dict[str, Any]:
    return {"using": using or None, **finding._asdict()}


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
