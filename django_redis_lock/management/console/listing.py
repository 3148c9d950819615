"""``locks list``: the held locks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from django.utils.text import get_text_list

from django_redis_lock.management.console.durations import length
from django_redis_lock.management.console.facts import attention_of, holder_columns, holder_facts
from django_redis_lock.management.console.selection import SORTS, Backends, nothing
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal.notice)
    found = _selected(options, backends.holders(options["pattern"]))
    first = list(islice(found, 1))
    found = chain(first, found)
    if terminal.as_json:
        terminal.json_object("locks", map(holder_facts, found), backends.not_known)
    else:
        terminal.table(holder_columns(many=backends.many), found, attention_of)
    backends.finish()
    if first:
        backends.warn_of_unwritable()
    elif wanted := _wanted(options):
        subject = "No lock" if options["pattern"] == "*" else "No held lock"
        raise nothing(f"{subject} {get_text_list(wanted, 'and')}.")
    else:
        terminal.notice("No locks are held.")


def _selected(options: dict[str, Any], found: Iterator[Holder]) -> Iterator[Holder]:
    """Return the holders that match, in order; without ``--sort`` as they are read."""
    if options["older_than"]:
        found = (one for one in found if (one.held_for or 0.0) >= options["older_than"])
    if options["attention"]:
        found = filter(attention_of, found)
    if options["sort"]:
        found = iter(sorted(found, key=SORTS[options["sort"]], reverse=options["reverse"]))
    elif options["reverse"]:
        found = reversed(list(found))
    return islice(found, options["limit"])


def _wanted(options: dict[str, Any]) -> list[str]:
    """Return what the options ask of a lock."""
    wanted = []
    if options["pattern"] != "*":
        wanted.append(f"matches {visible(options['pattern'])!r}")
    if options["older_than"]:
        wanted.append(f"has been held for at least {length(options['older_than'])}")
    if options["attention"]:
        wanted.append("needs attention")
    return wanted
