"""The strictest policy that lets a page have scripts and styles: files of its own host alone."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'"


def strict_csp(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond
