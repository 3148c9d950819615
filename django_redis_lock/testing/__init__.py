"""What tests of a project need: a lock space of their own, and locks in every state.

With pytest, ``django_redis_lock.testing.plugin`` offers the same as options and fixtures.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_redis_lock.testing.cases import LockTestMixin
    from django_redis_lock.testing.holds import expire_now, held_by_another, lose
    from django_redis_lock.testing.leftovers import assert_no_locks_held
    from django_redis_lock.testing.outage import unavailable
    from django_redis_lock.testing.recorder import LockRecorder
    from django_redis_lock.testing.spaces import LockSpace
else:
    from django_redis_lock.support.lazy import imported_when_used

    __getattr__ = imported_when_used(
        __name__,
        {
            "LockRecorder": "django_redis_lock.testing.recorder",
            "LockSpace": "django_redis_lock.testing.spaces",
            "LockTestMixin": "django_redis_lock.testing.cases",
            "assert_no_locks_held": "django_redis_lock.testing.leftovers",
            "expire_now": "django_redis_lock.testing.holds",
            "held_by_another": "django_redis_lock.testing.holds",
            "lose": "django_redis_lock.testing.holds",
            "unavailable": "django_redis_lock.testing.outage",
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
