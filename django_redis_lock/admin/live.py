"""How the script in the browser is answered, which asks every few seconds for what has changed."""

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
"""The script sends it when it asks for the part of a page that changes."""
EVERY_HEADER = "X-Held-Locks-Every"
"""Tells the script in how many seconds to ask again."""
SHARE = 0.03
"""How much of a core the tabs of one process take together, however many there are and whatever
they show. A single tab with a hundred locks takes that much when it asks every three seconds."""
LONGEST = 20.0
"""Seconds for which a tab rests at the most."""

View = Callable[..., HttpResponse]


class Turns:
    """When the tabs of this process may come again: one after the other, each for its share."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._free_at = 0.0

    def pause(self, cost: float) -> float:
        """Return the seconds until the next turn, after an answer of so many seconds."""
        with self._mutex:
            now = monotonic()
            self._free_at = min(max(self._free_at, now) + cost / SHARE, now + LONGEST)
            return self._free_at - now


turns = Turns()


def is_live(request: HttpRequest) -> bool:
    """Return whether the script asks."""
    return HEADER in request.headers


def live_view(view: View, site: AdminSite) -> View:
    """Wrap a view of an admin site, so that the script is told where a login has ended.

    A login page, to which the site would send it, is nothing that it can show.
    """

    @functools.wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if is_live(request) and not site.has_permission(request):
            return refuse(request, 403 if request.user.is_authenticated else 401)
        return view(request, *args, **kwargs)

    return answer


def refuse(request: HttpRequest, status: int) -> HttpResponse:
    """Tell the script alone that there is nothing to show."""
    refused = HttpResponse(status=status)
    patch_vary_headers(refused, [HEADER, "Cookie"])
    _leave_session(request, refused)
    return refused


def answer(
    request: HttpRequest, response: HttpResponse, template: str, least: float | None, begun: float
) -> HttpResponse:
    """Render only the part that changes, where the script asks; tell when to ask again.

    ``least`` is the fewest seconds until then, and ``begun`` the thread's time at the beginning.
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
    """Let a session end when nobody but the script has used it."""
    session = getattr(request, "session", None)
    if session is not None and not session.modified:
        patch_vary_headers(response, ["Cookie"])
        request.session = _Unrenewed(session)  # type: ignore[assignment]


class _Unrenewed:
    """A session that Django's middleware neither saves nor sends anew, whatever the settings say.

    Its middleware leaves alone what does not tell whether it was modified.
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
