"""``locks list``: the held locks."""

from __future__ import annotations

from typing import Any

from django_redis_lock.management.console import watching
from django_redis_lock.management.console.durations import duration
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
    elif options["pattern"] != "*" or options["older_than"] or options["queued"]:
        raise nothing(f"No held lock matches{_selection(options)}.")
    else:
        terminal.notice("No locks are held.")


def _selection(options: dict[str, Any]) -> str:
    words = "" if options["pattern"] == "*" else f" {visible(options['pattern'])!r}"
    if options["older_than"]:
        words += f" and has been held for {duration(options['older_than'])}"
    if options["queued"]:
        words += " and is held for a message in a Celery queue"
    return words
