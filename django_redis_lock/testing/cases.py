"""A mixin for the test cases of unittest and Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_redis_lock.testing.spaces import Kind, LockSpace

if TYPE_CHECKING:
    from unittest import TestCase
else:
    TestCase = object


class LockTestMixin(TestCase):
    """Gives the test methods of a class a lock space, and each of them an empty one.

    Name it before the ``TestCase``. Locks that ``setUpClass`` or ``setUpTestData`` acquires stay
    for all methods. ``setUp`` and ``setUpClass`` of a subclass have to call those of ``super()``.
    """

    lock_space: ClassVar[Kind] = "memory"
    """Where the locks are kept; see ``LockSpace``."""
    fail_on_held_locks: ClassVar[bool] = True
    """Whether a test fails that leaves a lock held."""
    _space: ClassVar[LockSpace]

    @classmethod
    def setUpClass(cls) -> None:
        """Begin the lock space."""
        cls._space = cls.enterClassContext(LockSpace(cls.lock_space))
        super().setUpClass()

    def setUp(self) -> None:
        """Have what this test leaves released at its end."""
        self.enterContext(self._space.one_test(fail_on_held=self.fail_on_held_locks))
        super().setUp()
