"""What tests of a project need: a lock space of their own, and locks in every state.

With pytest, ``django_redis_lock.testing.plugin`` offers the same as options and fixtures.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_redis_lock.testing.spaces import LockSpace, LockTestMixin, assert_no_locks_held
    from django_redis_lock.testing.tools import (
        LockRecorder,
        expire_now,
        held_by_another,
        lose,
        unavailable,
    )
else:
    from django_redis_lock.support import imported_when_used

    __getattr__ = imported_when_used(
        __name__,
        {
            "LockRecorder": "django_redis_lock.testing.tools",
            "LockSpace": "django_redis_lock.testing.spaces",
            "LockTestMixin": "django_redis_lock.testing.spaces",
            "assert_no_locks_held": "django_redis_lock.testing.spaces",
            "expire_now": "django_redis_lock.testing.tools",
            "held_by_another": "django_redis_lock.testing.tools",
            "lose": "django_redis_lock.testing.tools",
            "unavailable": "django_redis_lock.testing.tools",
        },
    )

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
