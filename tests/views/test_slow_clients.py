"""``@locked`` and any client there is: slow, cut off, too large; each over a real socket."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.files.uploadhandler import MemoryFileUploadHandler, TemporaryFileUploadHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer
from django.core.signals import request_started
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.test.testcases import QuietWSGIRequestHandler
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.response import Response

from django_redis_lock import locks, signals
from django_redis_lock.views import locked
from tests.tools import PATIENCE

pytestmark = [pytest.mark.urls("tests.views.test_slow_clients"), pytest.mark.usefixtures("server")]

NAME = "visited"
MORE_THAN_MEMORY = 3_000_000
"""Bytes; Django holds 2.5 MB in memory."""
BOUNDARY = "b0undary"


def upload(size: int = 20) -> bytes:
    """Return a form with a field and a file."""
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
@locked(NAME, blocking=False)
def form(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"sku": request.POST["sku"]})


@locked(NAME, blocking=False)
def protected(request: HttpRequest) -> HttpResponse:
    """Here Django's middleware has looked for its token in the form."""
    return JsonResponse({"sku": request.POST.get("sku"), "files": len(request.FILES)})


@csrf_exempt
@locked(NAME, blocking=False)
def raw(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.read())


@csrf_exempt
@locked(NAME, blocking=False)
def not_interested(request: HttpRequest) -> HttpResponse:
    return HttpResponse("{}")


@csrf_exempt
@locked(NAME, blocking=False)
def own_handlers(request: HttpRequest) -> HttpResponse:
    """Choose how uploads are taken in, which Django refuses once the form was parsed."""
    request.upload_handlers = [
        MemoryFileUploadHandler(request),
        TemporaryFileUploadHandler(request),
    ]
    return JsonResponse({"sku": request.POST["sku"], "size": request.FILES["file"].size})


@csrf_exempt
@locked(NAME, blocking=False)
def in_transaction(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"sku": request.POST["sku"], "atomic": connection.in_atomic_block})


@locked(NAME, blocking=False)
@api_view(["POST", "PUT"])
def api(request: Any) -> Response:
    return Response({"sku": request.data["sku"]})


@method_decorator(csrf_exempt, name="dispatch")
class OnMethod(View):
    @locked(NAME, blocking=False)
    def put(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(json.loads(request.body))


urlpatterns = [
    path("form/", form),
    path("protected/", protected),
    path("raw/", raw),
    path("not_interested/", not_interested),
    path("on_method/", OnMethod.as_view()),
    path("own_handlers/", own_handlers),
    path("in_transaction/", in_transaction),
    path("api/", api),
]

SENDINGS = [
    ("POST", "form", FORM),
    ("POST", "protected", UPLOAD),
    ("PATCH", "raw", JSON),
    ("POST", "not_interested", JSON),
    ("PUT", "on_method", JSON),
    ("POST", "own_handlers", UPLOAD),
    ("PUT", "api", UPLOAD),
]


class Input:
    """What a server reads from a client; it says when it waits for one."""

    def __init__(self, stream: Any, reading: threading.Event) -> None:
        self._stream = stream
        self._reading = reading

    def read(self, *size: int) -> bytes:
        self._reading.set()
        return self._stream.read(*size)

    def readline(self, *size: int) -> bytes:
        self._reading.set()
        return self._stream.readline(*size)


class Server(ThreadedWSGIServer):
    """Django's server for development, which waits for its threads."""

    daemon_threads = False


class Site:
    """A server of this process, with a thread for each request."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.port = server.server_port
        self.reading = threading.Event()
        self.taken: list[str] = []
        self.visitors: list[Visitor] = []

    @contextmanager
    def sharing(self, database: Any) -> Iterator[None]:
        """Let the threads of the server use a connection of the test."""
        self._server.connections_override = {database.alias: database}
        database.inc_thread_sharing()
        yield
        self.end()
        database.dec_thread_sharing()

    def end(self) -> None:
        """Hang up on all, and wait until the server has seen it."""
        for visitor in self.visitors:
            visitor.close()
        self._server.shutdown()
        self._server.server_close()

    def open(self, method: str, view: str, headers: dict[str, Any], body: bytes = b"") -> Visitor:
        """Send the beginning of a request."""
        lines = [f"{method} /{view}/ HTTP/1.1", "Host: testserver", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.reading.clear()
        visitor = Visitor(self.port, "\r\n".join([*lines, "", ""]).encode() + body)
        self.visitors.append(visitor)
        return visitor

    def send(self, method: str, view: str, what: tuple[str, bytes]) -> tuple[int, bytes]:
        """Send a whole request; return the status and the answer."""
        headers = {"Content-Type": what[0], "Content-Length": len(what[1]), **TOKEN}
        return self.open(method, view, headers, what[1]).answer()

    def begin(self, method: str, view: str, what: tuple[str, bytes], sent: int) -> Visitor:
        """Send a part of the body; return when the server waits for more."""
        headers = {"Content-Type": what[0], "Content-Length": len(what[1]), **TOKEN}
        visitor = self.open(method, view, headers, what[1][:sent])
        assert self.reading.wait(PATIENCE)
        return visitor


class Visitor:
    """A client that has a request under way."""

    def __init__(self, port: int, beginning: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._socket.sendall(beginning)

    def go_on(self, more: bytes) -> None:
        self._socket.sendall(more)

    def stop(self) -> None:
        """Say that nothing more will come."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def answer(self) -> tuple[int, bytes]:
        with self._socket.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that tells when it waits for a client, and which locks were taken."""
    server = Server(("127.0.0.1", 0), QuietWSGIRequestHandler)
    server.set_app(WSGIHandler())
    site = Site(server)

    def begun(environ: dict[str, Any], **arguments: Any) -> None:
        environ["wsgi.input"] = Input(environ["wsgi.input"], site.reading)

    def taken(name: str, **arguments: Any) -> None:
        site.taken.append(name)

    request_started.connect(begun)
    signals.lock_acquired.connect(taken)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield site
    site.end()
    thread.join()
    signals.lock_acquired.disconnect(taken)
    request_started.disconnect(begun)


def it_is_free() -> bool:
    return not list(locks["default"].holders())


@pytest.mark.parametrize(("method", "view", "what"), SENDINGS)
def test_who_sends_slowly_holds_no_lock(
    site: Site, method: str, view: str, what: tuple[str, bytes]
) -> None:
    """Others are served meanwhile; later the view finds the whole body."""
    slow = site.begin(method, view, what, 5)
    assert it_is_free()
    others = site.send(method, view, what)
    slow.go_on(what[1][5:-1])
    assert it_is_free()
    slow.go_on(what[1][-1:])
    assert slow.answer() == others
    assert others[0] == 200
    if view != "not_interested":
        assert b"lamp" in others[1]
    assert len(site.taken) == 2


@pytest.mark.parametrize(("method", "view", "what"), SENDINGS)
def test_who_goes_away_takes_no_lock(
    site: Site, method: str, view: str, what: tuple[str, bytes]
) -> None:
    """With a partial body the view does not run, and the answer is 400."""
    for sent in (5, len(what[1]) - 1):
        cut_off = site.begin(method, view, what, sent)
        cut_off.stop()
        assert cut_off.answer()[0] == 400
    assert site.taken == []


@pytest.mark.parametrize("what", [FORM, UPLOAD])
def test_a_connection_that_breaks_before_the_view(site: Site, what: tuple[str, bytes]) -> None:
    """Django's middleware says nothing of it, and leaves an empty form."""
    web = Client(enforce_csrf_checks=True, headers=TOKEN)
    response = web.post("/protected/", what[1], what[0], **{"wsgi.input": Broken()})
    assert (response.status_code, site.taken) == (400, [])


class Broken(io.BytesIO):
    """What a server reads from a connection that was reset."""

    def read(self, *size: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


@pytest.mark.parametrize(("method", "view", "what"), [("POST", "form", FORM), ("PUT", "api", JSON)])
def test_too_much_is_refused_before_it_is_sent(
    site: Site, method: str, view: str, what: tuple[str, bytes]
) -> None:
    """With 400, as by Django where a view asks for it, and without the lock."""
    headers = {"Content-Type": what[0], "Content-Length": MORE_THAN_MEMORY}
    large = site.open(method, view, headers, what[1])
    large.stop()
    assert large.answer()[0] == 400
    assert site.taken == []


def test_a_large_upload(settings: Any, tmp_path: Any) -> None:
    """It waits in a file, where Django keeps its own, for the handlers that the view chooses."""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 0
    what = upload(MORE_THAN_MEMORY)
    response = Client().post("/own_handlers/", what, UPLOAD[0])
    assert response.json() == {"sku": "lamp", "size": MORE_THAN_MEMORY}
    assert response.wsgi_request._stream.closed


@pytest.mark.django_db(transaction=True)
def test_no_transaction_waits_for_a_client(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of ATOMIC_REQUESTS begins when all has come, and the lock is held."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with site.sharing(connections["default"]):
        slow = site.begin("POST", "in_transaction", FORM, 5)
        assert it_is_free()
        assert not connection.in_atomic_block
        slow.go_on(FORM[1][5:])
        status, answer = slow.answer()
        assert (status, json.loads(answer)) == (200, {"sku": "lamp", "atomic": True})
        cut_off = site.begin("POST", "in_transaction", FORM, 5)
        cut_off.stop()
        assert cut_off.answer()[0] == 400
    assert site.taken == [NAME]
