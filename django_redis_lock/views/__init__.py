"""The decorator that takes a lock around a view."""

from django_redis_lock.views.decorator import locked
from django_redis_lock.views.requests import GuardedRequest, LockedRequest, NoLock

__all__ = ["GuardedRequest", "LockedRequest", "NoLock", "locked"]
