"""``@locked`` and requests whose body comes slowly, is cut off, or is too large."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.response import Response

from django_redis_lock import locks
from django_redis_lock.testing import LockRecorder
from django_redis_lock.views import body, locked
from tests.tools import PATIENCE, Background

pytestmark = [pytest.mark.urls("tests.views.test_slow_clients"), pytest.mark.usefixtures("server")]

guard = locked("visited", blocking=False)
MORE_THAN_MEMORY = 3_000_000
"""Bytes; Django holds 2.5 MB in memory."""
BOUNDARY = "b0undary"


def upload(size: int = 20) -> bytes:
    return (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="sku"\r\n\r\nlamp\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        f"{'x' * size}\r\n--{BOUNDARY}--\r\n"
    ).encode()


FORM = ("application/x-www-form-urlencoded", b"sku=lamp&size=big")
JSON = ("application/json", b'{"sku": "lamp"}')
UPLOAD = (f"multipart/form-data; boundary={BOUNDARY}", upload())
TOKEN = {"Cookie": f"csrftoken={'a' * 32}", "X-CSRFToken": "a" * 32}


# The views: each tells what it found in the body.


@csrf_exempt
@guard
def form(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"sku": request.POST["sku"]})


@guard
def protected(request: HttpRequest) -> HttpResponse:
    """Here Django's middleware has looked for its token in the form."""
    return JsonResponse({"sku": request.POST.get("sku"), "files": len(request.FILES)})


@csrf_exempt
@guard
def own_handlers(request: HttpRequest) -> HttpResponse:
    """Choose how uploads are taken in, which Django refuses once the form was parsed."""
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return JsonResponse({"sku": request.POST["sku"], "size": request.FILES["file"].size})


@guard
@api_view(["POST", "PUT"])
def api(request: Any) -> Response:
    return Response({"sku": request.data["sku"]})


urlpatterns = [
    *[path(f"{view.__name__}/", view) for view in (form, protected, own_handlers)],
    path("api/", api),
]

SENDINGS = [
    ("POST", "form", FORM),
    ("POST", "protected", UPLOAD),
    ("POST", "own_handlers", UPLOAD),
    ("PUT", "api", UPLOAD),
]

Body = tuple[str, bytes]
NOTHING = ("", b"")


def send(method: str, view: str, body: Body, **environ: Any) -> HttpResponse:
    """Make a request with a whole body, or with what ``environ`` says of it."""
    client = Client(enforce_csrf_checks=True, headers=TOKEN)
    return client.generic(method, f"/{view}/", body[1], body[0], **environ)


class Sender:
    """A client that sends its body through a pipe, to a request in a thread. It is there when the
    request waits for more than the beginning."""

    def __init__(self, method: str, view: str, body: Body, sent: int, length: int = 0) -> None:
        reading, self._writing = os.pipe()
        self._stream = os.fdopen(reading, "rb")
        self._waits = threading.Event()
        self.go_on(body[1][:sent])
        environ = {
            "CONTENT_TYPE": body[0],
            "CONTENT_LENGTH": length or len(body[1]),
            "wsgi.input": self,
        }

        def request() -> HttpResponse:
            with self._stream:
                return send(method, view, NOTHING, **environ)

        self._request = Background(request)
        assert length or self._waits.wait(PATIENCE)

    def read(self, *size: int) -> bytes:
        self._waits.set()
        return self._stream.read(*size)

    readline = read

    def go_on(self, more: bytes) -> None:
        os.write(self._writing, more)

    def answer(self) -> HttpResponse:
        os.close(self._writing)
        return self._request.outcome()


@pytest.fixture
def taken() -> Iterator[list[str]]:
    with LockRecorder() as recorded:
        yield recorded.acquired


def it_is_free() -> bool:
    return not list(locks["default"].holders())


@pytest.mark.parametrize(("method", "view", "body"), SENDINGS)
def test_a_client_that_sends_slowly_or_goes_away_holds_no_lock(
    taken: list[str], method: str, view: str, body: Body
) -> None:
    slow = Sender(method, view, body, 5)
    assert it_is_free()
    other = send(method, view, body)
    slow.go_on(body[1][5:-1])
    assert it_is_free()
    slow.go_on(body[1][-1:])
    answer = slow.answer()
    assert (answer.status_code, answer.content) == (200, other.content)
    assert b"lamp" in answer.content
    for sent in (5, len(body[1]) - 1):  # and then the client goes away
        assert Sender(method, view, body, sent).answer().status_code == 400
    assert len(taken) == 2


class Reset(io.BytesIO):
    """What a server reads from a connection that was reset."""

    def read(self, *size: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


@pytest.mark.parametrize("body", [FORM, UPLOAD])
def test_a_connection_that_is_reset_before_the_view(taken: list[str], body: Body) -> None:
    """Django's middleware says nothing of it, and leaves an empty form."""
    response = send("POST", "protected", body, **{"wsgi.input": Reset()})
    assert (response.status_code, taken) == (400, [])


@pytest.mark.parametrize(("method", "view", "body"), [("POST", "form", FORM), ("PUT", "api", JSON)])
def test_too_much_is_refused_before_it_is_sent(
    taken: list[str], method: str, view: str, body: Body
) -> None:
    large = Sender(method, view, body, 5, length=MORE_THAN_MEMORY)
    assert large.answer().status_code == 400
    assert taken == []


def test_a_large_upload(settings: Any, tmp_path: Any) -> None:
    """It waits in a file, where Django keeps its own, for the handlers that the view chooses."""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 0
    response = send("POST", "own_handlers", (UPLOAD[0], upload(MORE_THAN_MEMORY)))
    assert json.loads(response.content) == {"sku": "lamp", "size": MORE_THAN_MEMORY}
    assert response.wsgi_request._stream.closed


def test_no_event_loop_waits_for_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under WSGI it may yet arrive."""
    receive, threads = body.receive, list[int]()

    def received(request: HttpRequest) -> None:
        threads.append(threading.get_ident())
        receive(request)

    @guard
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    monkeypatch.setattr(body, "receive", received)
    assert asyncio.run(view(RequestFactory().post("/", {"sku": "lamp"}))).status_code == 200
    assert threads not in ([], [threading.get_ident()])
