"""The responses to requests that did not get the lock of their view."""

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
"""The statuses to choose from when another request holds the lock."""
UNAVAILABLE = 503
RETRY_AFTER = 5
"""Seconds for Retry-After when the server is unavailable and the view gives none."""
TEMPLATE = "django_redis_lock/locked.html"


class Refusal:
    """Makes responses as JSON or HTML, as the client prefers.

    Raises ``ValueError`` for an invalid ``status`` or ``retry_after``.
    """

    def __init__(self, status: int, retry_after: int | None) -> None:
        if status not in STATUSES:
            raise ValueError(
                f"status={status!r} is not a status for a lock that is held; choose from "
                f"{', '.join(map(str, STATUSES))}."
            )
        if retry_after is not None and (type(retry_after) is not int or retry_after < 1):
            raise ValueError(f"retry_after={retry_after!r} must be whole seconds, 1 or more.")
        self._status = status
        self._retry_after = retry_after

    def locked(self, request: Any) -> HttpResponse:
        """Return the response for a lock that another request holds."""
        return self._answer(
            request, self._status, "locked", _("Somebody else is doing this right now.")
        )

    def unavailable(self, request: Any, error: LockUnavailable) -> HttpResponse:
        """Log that the server is unavailable, and return the response."""
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
