"""Answers the script in the browser, which asks every few seconds for what has changed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import patch_vary_headers

HEADER = "X-Held-Locks"
"""Sent by the script to ask for the part of a page that changes."""
EVERY_HEADER = "X-Held-Locks-Every"
"""Tells the script after how many seconds to ask again."""
SHARE = 0.03
"""The share of a core that all tabs of one process may take together. One tab with a hundred locks
takes about as much when it asks every three seconds."""
LONGEST_PAUSE = 20.0
"""Seconds between two requests of a tab, at most."""

View = Callable[..., HttpResponse]


class Turns:
    """Schedules the tabs of this process, one after another, so that they keep to ``SHARE``."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._free_at = 0.0

    def pause(self, cost: float) -> float:
        """Return the seconds until the next turn, given the CPU seconds of the last answer."""
        with self._mutex:
            now = monotonic()
            self._free_at = min(max(self._free_at, now) + cost / SHARE, now + LONGEST_PAUSE)
            return self._free_at - now


turns = Turns()


def is_live(request: HttpRequest) -> bool:
    """Whether the script asks."""
    return HEADER in request.headers


def live_view(view: View, site: AdminSite) -> View:
    """Wrap a view of an admin site to answer the script with 401 or 403 once a login has ended.

    The site would redirect it to a login page, which it can't show.
    """

    @functools.wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if is_live(request) and not site.has_permission(request):
            return refuse(request, 403 if request.user.is_authenticated else 401)
        return view(request, *args, **kwargs)

    return answer


def refuse(request: HttpRequest, status: int) -> HttpResponse:
    """Answer the script with a status and no content."""
    refused = HttpResponse(status=status)
    patch_vary_headers(refused, [HEADER, "Cookie"])
    _leave_session(request, refused)
    return refused


def answer(
    request: HttpRequest, response: HttpResponse, template: str, least: float | None, begun: float
) -> HttpResponse:
    """Render only the part that changes if the script asks, and say when to ask again.

    ``least`` is the shortest pause in seconds, ``begun`` the thread's CPU time at the start.
    """
    patch_vary_headers(response, [HEADER])
    if is_live(request) and isinstance(response, TemplateResponse):
        response.template_name = template

        def finish(rendered: HttpResponse) -> None:
            if least is not None:
                pause = turns.pause(max(0.0, thread_time() - begun))
                rendered[EVERY_HEADER] = f"{max(least, pause):.1f}"
            _leave_session(request, rendered)

        response.add_post_render_callback(finish)
    return response


def _leave_session(request: HttpRequest, response: HttpResponse) -> None:
    """Don't let the script keep a session alive."""
    session = getattr(request, "session", None)
    if session is not None and not session.modified:
        patch_vary_headers(response, ["Cookie"])
        request.session = _Unrenewed(session)  # type: ignore[assignment]


class _Unrenewed:
    """A session that Django's middleware neither saves nor sends, whatever the settings say.

    The middleware ignores a session without ``accessed`` and ``modified``.
    """

    def __init__(self, session: Any) -> None:
        self.__dict__["_session"] = session

    def __getattr__(self, name: str) -> Any:
        if name in ("accessed", "modified"):
            raise AttributeError(name)
        return getattr(self._session, name)

    def __contains__(self, key: str) -> bool:
        return key in self._session

    def __getitem__(self, key: str) -> Any:
        return self._session[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._session[key] = value

    def __delitem__(self, key: str) -> None:
        del self._session[key]
