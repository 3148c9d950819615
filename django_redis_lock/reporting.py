"""Keeps the passwords of URLs out of Django's error reports."""

from __future__ import annotations

from collections.abc import ItemsView
from pprint import pformat
from types import FrameType
from typing import Any

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter

from django_redis_lock.support.text import without_passwords


class PasswordsInUrlsFilter(SafeExceptionReporterFilter):
    """Hides the passwords inside of values, such as a ``LOCATION``, which Django's filter shows.

    Use it as ``DEFAULT_EXCEPTION_REPORTER_FILTER``.
    """

    def cleanse_setting(self, key: Any, value: Any) -> Any:
        cleansed = super().cleanse_setting(key, value)
        return without_passwords(cleansed) if isinstance(cleansed, str) else cleansed

    def get_traceback_frame_variables(
        self, request: HttpRequest | None, tb_frame: FrameType
    ) -> ItemsView[str, Any]:
        variables = super().get_traceback_frame_variables(request, tb_frame)
        return {name: _cleansed(value) for name, value in variables}.items()


class _Shown(str):
    """A value in a report, which shows it as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _cleansed(value: Any) -> Any:
    try:
        text = pformat(value)
    except Exception:  # any __repr__ may fail; the report handles it
        return value
    cleansed = without_passwords(text)
    return value if cleansed == text else _Shown(cleansed)
