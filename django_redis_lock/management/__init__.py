"""The command ``manage.py locks``, and the base of commands that hold a lock."""

from django_redis_lock.management.locked import LockedCommand

__all__ = ["LockedCommand"]
