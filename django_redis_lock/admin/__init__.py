"""Held locks in Django's admin, which imports this where it is installed."""

from django.contrib import admin

from django_redis_lock.admin.options import HeldLockAdmin
from django_redis_lock.models import HeldLock

__all__ = ["HeldLockAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
