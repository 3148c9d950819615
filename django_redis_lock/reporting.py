"""Error reports of Django, the pages and the mails, without the passwords of URLs."""

from __future__ import annotations

from collections.abc import ItemsView
from pprint import pformat
from types import FrameType
from typing import Any

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter

from django_redis_lock.support.text import without_passwords


class PasswordsInUrlsFilter(SafeExceptionReporterFilter):
    """Hides the passwords that Django's own filter shows: those in the middle of a value.

    Django hides the values of settings by their names, ``PASSWORD`` for one, and shows
    ``LOCATION``. Name this class in ``DEFAULT_EXCEPTION_REPORTER_FILTER``.
    """

    def cleanse_setting(self, key: Any, value: Any) -> Any:
        """Return a setting, or a part of one, as a report may show it."""
        cleansed = super().cleanse_setting(key, value)
        return without_passwords(cleansed) if isinstance(cleansed, str) else cleansed

    def get_traceback_frame_variables(
        self, request: HttpRequest | None, tb_frame: FrameType
    ) -> ItemsView[str, Any]:
        """Return the variables of a frame as a report may show them."""
        variables = super().get_traceback_frame_variables(request, tb_frame)
        return {name: _cleansed(value) for name, value in variables}.items()


class _Shown:
    """What stands in a report for a value."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _cleansed(value: Any) -> Any:
    try:
        text = pformat(value)
    except Exception:  # of anybody's __repr__, which the report tells in its own way
        return value
    cleansed = without_passwords(text)
    return value if cleansed == text else _Shown(cleansed)
