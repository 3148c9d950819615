"""Asynchronous views on a real ASGI server: ``python -m tests.apps.asgi_app FD``, of a socket."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_redis_lock.views import locked

CLIENT_NAME = "asgi-site-{pid}"
"""The name of a server's connections."""
FILES = 4096
"""How many files may be open: a socket for each request."""


async def ready(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ready")


def told(request: HttpRequest) -> JsonResponse:
    held = request.lock
    return JsonResponse({"fence": held.fence, "token_id": held.token_id})


@locked("asgi:{name}", blocking_timeout=100)
async def enter(request: HttpRequest, name: str) -> HttpResponse:
    return told(request)


@locked("asgi:{name}", blocking_timeout=100)
def enter_blocking(request: HttpRequest, name: str) -> HttpResponse:
    return told(request)


@locked("asgi:{name}", blocking=False)
async def stay(request: HttpRequest, name: str) -> HttpResponse:
    await asyncio.sleep(1000)
    raise AssertionError


urlpatterns = [
    path("ready/", ready),
    path("enter/<str:name>/", enter),
    path("enter-blocking/<str:name>/", enter_blocking),
    path("stay/<str:name>/", stay),
]


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    logging.basicConfig()
    logging.disable(logging.WARNING)  # errors alone, which no test is to cause
    allow_many_files()
    settings.ROOT_URLCONF = "tests.apps.asgi_app"
    settings.MIDDLEWARE = []
    settings.CACHES["locks"]["LOCATION"] += f"?client_name={CLIENT_NAME.format(pid=os.getpid())}"
    config = uvicorn.Config(
        get_asgi_application(), log_level="warning", lifespan="off", backlog=2 * FILES
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
