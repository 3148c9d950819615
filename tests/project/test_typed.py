"""The files for the type checkers use the whole public interface."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import django_redis_lock
import django_redis_lock.celery
from django_redis_lock import (
    AuditEntry,
    Holder,
    Limit,
    Lock,
    LockGroup,
    Waiter,
    exceptions,
    signals,
)
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import LockError
from django_redis_lock.protocol.calls import Runner

TESTS = Path(__file__).parents[1]
USED = "".join((TESTS / f"typed_{kind}.py").read_text() for kind in ("usage", "tasks"))


FOR_DJANGO = {"do_not_call_in_templates"}
"""What only Django's templates look for."""
INTERNAL = {
    *(
        "runs_scripts",
        "can_pass",
        "can_share",
        "check",
        "close",
        "configure",
        "databases",
        "event_of",
        "free",
        "freed",
    ),
    *(
        "registry_for",
        "make_registry",
        "open",
        "page_size",
        "read_index",
        "require",
        "require_sharing",
        "schemes",
    ),
    *("together", "wait"),
}
"""What only the package uses of a backend."""


def public(kind: type | ModuleType) -> set[str]:
    """Return the public names of a class and its bases, or of a module."""
    return {name for name in dir(kind) if not name.startswith("_")} - FOR_DJANGO


def subclasses(kind: type) -> list[type]:
    """Return a class and all that derive from it in the module of exceptions."""
    below = [each for child in kind.__subclasses__() for each in subclasses(child)]
    return [each for each in (kind, *below) if each.__module__ == exceptions.__name__]


@pytest.mark.parametrize(
    ("of", "names"),
    [
        ("the package", django_redis_lock.__all__),
        ("Celery", django_redis_lock.celery.__all__),
        ("a lock", public(Lock)),
        ("several locks", public(LockGroup)),
        ("operators", [*public(BaseLockBackend) - public(Runner) - INTERNAL]),
        ("a holder", [field.name for field in fields(Holder)]),
        ("a waiter", [field.name for field in fields(Waiter)]),
        ("a limit", [field.name for field in fields(Limit)]),
        ("an entry of the audit", [field.name for field in fields(AuditEntry)]),
        ("errors", [kind.__name__ for kind in subclasses(LockError)] + ["InvalidLockBackend"]),
        ("signals", [name for name in public(signals) if name.startswith("lock_")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_public_name_is_used(of: str, names: Collection[str]) -> None:
    """A public name that no typed file uses has types that no checker has seen."""
    assert [name for name in names if not re.search(rf"\b{name}\b", USED)] == [], of
