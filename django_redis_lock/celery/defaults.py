"""``SINGLE_INSTANCE_TASK``: what all guarded tasks are told unless they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_redis_lock.celery.options import make_options, merge

SETTING = "SINGLE_INSTANCE_TASK"
OF_ONE_TASK = ("key", "unique_on")
"""What only a task can be told, for it is about its arguments."""
_NONE: Mapping[str, Any] = {}
_defaults: Mapping[str, Any] | None = None


def app_defaults() -> Mapping[str, Any]:
    """Return the setting, the same object until it changes. Raises ``ImproperlyConfigured``."""
    global _defaults  # noqa: PLW0603
    if _defaults is None:
        try:
            given = getattr(settings, SETTING, _NONE)
        except ImproperlyConfigured:  # a program without settings
            return _NONE
        _defaults = _checked(given)
    return _defaults


def _checked(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {given!r}.")
    for name in OF_ONE_TASK:
        if name in given:
            raise ImproperlyConfigured(
                f"{SETTING} can't have {name!r}, which differs from task to task."
            )
    try:
        make_options(**given)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from None
    return merge(given)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        global _defaults  # noqa: PLW0603
        _defaults = None


setting_changed.connect(_forget)
