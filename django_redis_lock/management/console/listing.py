"""``locks list``: the held locks."""

from __future__ import annotations

from typing import Any

from django.utils.text import get_text_list

from django_redis_lock.management.console import watching
from django_redis_lock.management.console.durations import length
from django_redis_lock.management.console.facts import holder_columns, holder_facts, show_holders
from django_redis_lock.management.console.selection import Backends, nothing, peek, selected
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.support.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    if options["watch"] is None:
        _list(options, terminal)
    else:
        watching.watch(options, terminal)


def _list(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal.notice)
    some = peek(selected(options, backends.holders(options["pattern"])))
    if terminal.as_json:
        terminal.json_object("locks", map(holder_facts, some or ()), backends.not_known)
    else:
        show_holders(terminal, some or (), holder_columns(many=backends.many))
    backends.finish()
    if some is not None:
        backends.warn_of_unwritable()
    elif wanted := _wanted(options):
        subject = "No lock" if options["pattern"] == "*" else "No held lock"
        raise nothing(f"{subject} {get_text_list(wanted, 'and')}.")
    else:
        terminal.notice("No locks are held.")


def _wanted(options: dict[str, Any]) -> list[str]:
    """Return what the options ask of a lock."""
    wanted = []
    if options["pattern"] != "*":
        wanted.append(f"matches {visible(options['pattern'])!r}")
    if options["older_than"]:
        wanted.append(f"has been held for at least {length(options['older_than'])}")
    if options["attention"]:
        wanted.append("needs attention")
    if options["queued"]:
        wanted.append("is held for a message in a Celery queue")
    return wanted
