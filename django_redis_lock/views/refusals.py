"""What a request is answered that did not get the lock of its view."""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_redis_lock.exceptions import LockUnavailable

logger = logging.getLogger("django_redis_lock")

STATUSES = (409, 423, 503)
"""What a request can be told that did not get the lock."""
UNAVAILABLE = 503
RETRY_AFTER = 5
"""Seconds after which to come again when the server could not be asked, unless said otherwise."""
TEMPLATE = "django_redis_lock/locked.html"


class Refusal:
    """Answers in the form that the client prefers.

    Raises ``ValueError`` for a ``status`` or ``retry_after`` that makes no sense.
    """

    def __init__(self, status: int, retry_after: int | None) -> None:
        if status not in STATUSES:
            raise ValueError(
                f"status={status!r} says nothing about locks; it can be "
                f"{', '.join(map(str, STATUSES))}."
            )
        if retry_after is not None and (
            isinstance(retry_after, bool) or not isinstance(retry_after, int) or retry_after < 1
        ):
            raise ValueError(f"retry_after={retry_after!r} must be whole seconds, 1 or more.")
        self._status = status
        self._retry_after = retry_after

    def locked(self, request: Any) -> HttpResponse:
        """Say that somebody else has the lock."""
        return self._answer(
            request, self._status, "locked", _("Somebody else is doing this right now.")
        )

    def unavailable(self, request: Any, error: LockUnavailable) -> HttpResponse:
        """Say, and log, that the server can't be asked."""
        logger.error("A view could not take its lock: %s", error)
        return self._answer(
            request, UNAVAILABLE, "unavailable", _("This can't be done at the moment.")
        )

    def _answer(self, request: Any, status: int, code: str, reason: str) -> HttpResponse:
        advice = _("Please try again in a moment.")
        response: HttpResponse = JsonResponse(
            {"error": code, "detail": f"{reason} {advice}"}, status=status
        )
        if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
            context = {"status": status, "error": code, "reason": reason, "advice": advice}
            try:
                page = render_to_string(TEMPLATE, context, getattr(request, "_request", request))
                response = HttpResponse(page, status=status)
            except TemplateDoesNotExist:
                logger.warning("There is no template %s: set APP_DIRS, or write one.", TEMPLATE)
        patch_vary_headers(response, ["Accept", "Accept-Language"])
        retry_after = self._retry_after or (RETRY_AFTER if status == UNAVAILABLE else None)
        if retry_after is not None:
            response["Retry-After"] = str(retry_after)
        return response
