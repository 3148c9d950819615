"""Django settings of the simulation, which needs nothing of a project."""

from __future__ import annotations

INSTALLED_APPS: list[str] = []
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
LOCKS: dict[str, object] = {}
SECRET_KEY = "tests"
