"""The base class of the contracts, and the mark of tests that need a capability."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from django_redis_lock import Lock, LockGroup, lock, lock_many

Case = TypeVar("Case", bound=Callable[..., None])


def needs(*capabilities: str) -> Callable[[Case], Case]:
    """Mark a test of what only backends with these capabilities promise."""

    def mark(test: Case) -> Case:
        vars(test)["needs"] = capabilities
        return test

    return mark


class Contract:
    """A contract of a backend, which a test class of this backend extends."""

    using: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the backend does not have: those of its class; ``waiters``, if it does not
    show who waits; ``precision`` in milliseconds."""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            tests = [
                base for base in cls.__mro__ if name.startswith("test_") and name in vars(base)
            ]
            assert len(tests) < 2, (
                f"{tests} have tests of one name, of which only the first would run"
            )
            if cls.lacks.intersection(getattr(getattr(cls, name), "needs", ())):
                setattr(cls, name, None)

    def lock(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return lock(name, *args, using=self.using, **kwargs)

    def group(self, names: list[str]) -> LockGroup:
        return lock_many(names, using=self.using)
