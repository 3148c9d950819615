"""What a handle does, whether or not the backend excludes others."""

from __future__ import annotations

import asyncio
import math

import pytest

from django_redis_lock import locks
from django_redis_lock.exceptions import LockError, LockNotOwned
from tests.contracts.base import Contract


class HandleContract(Contract):
    """What a handle does, whether or not the backend excludes others."""

    def test_context_manager_holds_and_releases(self, name: str) -> None:
        with self.lock(name) as held:
            assert held.owned()
            assert held.fence > 0
            assert 0 < held.remaining <= locks[self.using].timeout
            assert not held.lost
        assert held.remaining == 0.0
        again = self.lock(name, blocking=False)
        assert again.acquire() is True  # these return as in redis-py
        assert again.release() is None

    def test_extend_adds_and_replaces(self, name: str) -> None:
        """``extend`` adds to the lease, or replaces it; ``reacquire`` starts it anew."""
        with self.lock(name, timeout=10) as held:
            assert held.extend(20) is True
            assert 20 < held.remaining <= 30
            assert held.extend(5, replace_ttl=True) is True
            assert 0 < held.remaining <= 5
            assert held.reacquire() is True
            assert 5 < held.remaining <= 10

    def test_endless_lock(self, name: str) -> None:
        """``timeout=None`` never expires, and its lease can't be changed."""
        with self.lock(name, timeout=None) as held:
            assert held.remaining == math.inf
            held.ensure_held()
            assert held.remaining == math.inf
            with pytest.raises(LockError, match="no lease to extend"):
                held.extend(5)
            with pytest.raises(LockError, match="no lease to extend"):
                held.reacquire()

    def test_decorator(self, name: str) -> None:
        seen = []

        @self.lock(name)
        def work(value: int, *, plus: int = 0) -> int:
            """Work."""
            seen.append(locks[self.using].holder(name))
            return value + plus

        assert work(1, plus=2) == 3
        assert work(4) == 4
        assert work.__doc__ == "Work."
        assert len(seen) == 2

    def test_async_face(self, name: str) -> None:
        """Every operation has an asynchronous version that does the same."""

        async def main() -> None:
            async with self.lock(name, timeout=10) as held:
                assert await held.aowned()
                await held.aensure_held()
                await held.aextend(10)
                assert 10 < held.remaining <= 20
                await held.areacquire()
                assert 0 < held.remaining <= 10
                with pytest.raises(LockError, match="already"):
                    await held.aacquire()
            with pytest.raises(LockNotOwned):
                await held.arelease()

        asyncio.run(main())

    @pytest.mark.parametrize("good", [" ", "a b", "ключ:{42}", "鎖 🔒", "x" * 512, "a*[b]?", "%s"])
    def test_good_names_work(self, good: str) -> None:
        """Any other text is a name, exactly as written."""
        with self.lock(good) as held:
            assert held.owned()
            holder = locks[self.using].holder(good)
            assert holder is None or holder.name == good

    def test_free_lock_has_no_waiters_and_no_history(self, name: str) -> None:
        """A lock that is not held has no queue, and one that was never lost has no history."""
        backend = locks[self.using]
        assert backend.waiting(name) == backend.history(name) == []
        with pytest.raises(ValueError, match="limit=0"):
            backend.history(limit=0)
        for question in (backend.waiting, backend.history, backend.force_release):
            with pytest.raises(ValueError, match="name"):
                question("")
