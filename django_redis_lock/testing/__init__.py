"""What tests need: a lock space, and locks in every state. ``plugin`` offers it to pytest."""

from typing import TYPE_CHECKING

__all__ = [
    "LockRecorder",
    "LockSpace",
    "LockTestMixin",
    "assert_no_locks_held",
    "expire_now",
    "held_by_another",
    "lose",
    "unavailable",
]

if TYPE_CHECKING:
    from django_redis_lock.testing.tools import (
        LockRecorder,
        LockSpace,
        LockTestMixin,
        assert_no_locks_held,
        expire_now,
        held_by_another,
        lose,
        unavailable,
    )
else:
    from django_redis_lock.support import imported_when_used

    __getattr__ = imported_when_used(
        __name__, dict.fromkeys(__all__, "django_redis_lock.testing.tools")
    )
