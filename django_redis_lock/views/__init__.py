"""The decorator that takes a lock around a view."""

from django_redis_lock.views.decorator import GuardedRequest, LockedRequest, NoLock, locked

__all__ = ["GuardedRequest", "LockedRequest", "NoLock", "locked"]
