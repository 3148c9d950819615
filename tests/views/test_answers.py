"""Methods that take the lock, and answers without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.db import connection
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockNotAcquired, LockUnavailable
from django_redis_lock.testing import unavailable
from django_redis_lock.views import RETRY_AFTER, STATUSES, locked
from tests.tools import eventually
from tests.views.conftest import ADDRESSES, BROWSER, both, refused

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PURGE")


@pytest.mark.parametrize(
    ("options", "expected"), [({}, {*METHODS}), ({"methods": ["GET", "HEAD"]}, {"GET", "HEAD"})]
)
def test_the_methods_that_take_the_lock(options: dict[str, Any], expected: set[str]) -> None:
    """With another method a request needs no name for it, either."""

    def answer(request: Any) -> HttpResponse:
        return HttpResponse(f"{request.lock}")

    with lock("view", timeout=60):
        for view in both(locked("{request.GET[name]}", blocking=False, **options), answer):
            for method in METHODS:
                if method in expected:
                    assert view(RequestFactory().generic(method, "/?name=view")).status_code == 409
                else:
                    assert view(RequestFactory().generic(method, "/")).content == b"None"


def test_the_lock_of_an_outer_decorator_stays() -> None:
    view = locked("inner", methods=["POST"])(lambda request: HttpResponse(request.lock.name))
    assert locked("outer")(view)(RequestFactory().get("/")).content == b"outer"


@pytest.mark.parametrize(
    ("limit", "detail", "options", "logged"),
    [
        (
            None,
            "This is busy right now.",
            {"blocking": False},
            " at once: the only permit is taken",
        ),
        (
            0,
            "This can't be done at the moment.",
            {"blocking": False},
            " at once: paused: limit 0, set by",
        ),
        (0, "This can't be done at the moment.", {"max_waiters": 0}, ": its queue"),
    ],
)
def test_a_view_that_is_paused_does_not_blame_others(
    name: str, limit: Any, detail: str, options: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says who paused it if the queue has room, and the answer does not."""
    caplog.set_level("INFO", "django_redis_lock")
    request = RequestFactory().get("/", headers={"Accept": "application/json"})
    with semaphore(name, 1):
        locks["default"].set_limit(name, limit, by="ada")
        for view in both(locked(name, limit=1, **options), lambda _: HttpResponse()):
            answer = view(request)
            assert answer.status_code == 409
            assert json.loads(answer.content)["detail"].startswith(detail)
    why = f"A view could not acquire its lock: Could not acquire lock {name!r}{logged}"
    assert sum(line.startswith(why) for line in caplog.messages) == 2


@pytest.mark.parametrize(
    ("options", "statuses"),
    [({}, (409, 409)), ({"shared": True}, (200, 200)), ({"limit": 2}, (200, 409))],
)
def test_requests_that_run_together(options: dict[str, Any], statuses: tuple[int, int]) -> None:
    """Beside one reader, and beside two."""
    view = locked("view", blocking=False, **options)(lambda request: HttpResponse())
    with lock("view", timeout=60, shared=True):
        assert view(RequestFactory().get("/")).status_code == statuses[0]
        with lock("view", timeout=60, shared=True):
            assert view(RequestFactory().get("/")).status_code == statuses[1]


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_that_was_chosen(status: int) -> None:
    answer = refused(status=status)
    assert answer.status_code == status
    assert answer.headers.get("Retry-After") == (str(RETRY_AFTER) if status == 503 else None)


@pytest.mark.parametrize(
    "accept", ["*/*", "text/html;q=0.5, application/json", "image/png", BROWSER["accept"]]
)
def test_json_or_html(accept: str) -> None:
    answer = refused({"accept": accept})
    assert answer["Vary"] == "Accept, Accept-Language"
    if accept == BROWSER["accept"]:
        assert answer["Content-Type"].startswith("text/html")
        assert "This is busy right now." in answer.content.decode()
    else:
        detail = "This is busy right now. Please try again in a moment."
        assert json.loads(answer.content) == {"error": "locked", "detail": detail}


def test_the_language_of_the_client(web: Client) -> None:
    with lock("product:7", timeout=60):
        page = web.post("/buy/7/", headers={**BROWSER, "accept-language": "de"}).content.decode()
    assert '<html lang="de">' in page
    assert "Das ist gerade belegt." in page


def test_a_project_without_templates(settings: Any, caplog: Any) -> None:
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False}]
    assert refused(BROWSER)["Content-Type"] == "application/json"
    assert "APP_DIRS" in caplog.text


@pytest.mark.parametrize("kind", ["async", "on-class"])
def test_an_unreachable_server(web: Client, kind: str) -> None:
    with unavailable():
        answer, page = web.post(f"/{kind}/7/"), web.post(f"/{kind}/7/", headers=BROWSER)
    assert (answer.status_code, page.status_code) == (503, 503)
    assert answer.json()["error"] == "unavailable"
    assert answer["Retry-After"] == page["Retry-After"] == str(RETRY_AFTER)
    assert "This can&#x27;t be done at the moment." in page.content.decode()


def enveloped(error: Exception, context: dict[str, Any]) -> Any:
    """Answer as a project does that has one form for all errors of its API."""
    assert isinstance(context["view"], APIView)
    response: Any = exception_handler(error, context)
    codes: Any = error.get_codes()  # type: ignore[attr-defined]
    response.data = {"codes": codes, "cause": type(error.__cause__).__name__}
    return response


@pytest.fixture
def envelope(settings: Any, db: None) -> None:
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.enveloped"}


@pytest.mark.usefixtures("envelope")
@pytest.mark.parametrize("address", [each for each in ADDRESSES if "api" in each])
def test_the_framework_of_an_api_answers(web: Client, address: str) -> None:
    """Its handler of exceptions makes the response, on whatever the lock is."""
    with lock("product:7", timeout=60):
        held = web.post(address)
        page = web.post(address, headers={"accept": "application/json;indent=4"})
    assert (held.status_code, "Retry-After" in held) == (409, False)
    assert held.json() == {"codes": "locked", "cause": "LockNotAcquired"}
    assert page.content.count(b"\n") == 3
    with unavailable():
        down = web.post(address)
    assert (down.status_code, down["Retry-After"]) == (503, str(RETRY_AFTER))
    assert down.json() == {"codes": "unavailable", "cause": "LockUnavailable"}
    assert web.put(address.replace("7", "8")).status_code == 405
    assert web.post(address).status_code == 200


@pytest.mark.usefixtures("envelope")
@pytest.mark.parametrize("address", ["/by-sku/", "/api/on-view-set/a%09b/"])
def test_the_framework_answers_for_data_that_make_no_name(web: Client, address: str) -> None:
    answer = web.post(address)
    assert (answer.status_code, answer.json()["codes"]) == (400, "parse_error")


@pytest.mark.usefixtures("envelope")
def test_an_answer_of_the_framework_spoils_no_transaction(
    web: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It marks the transaction of ATOMIC_REQUESTS for a rollback, which is not that of a test."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with unavailable():
        assert web.post("/atomic-api-view/").status_code == 503
    assert not connection.needs_rollback


ANSWERED = "view:{request.GET[name]}"


def views(**options: Any) -> dict[str, Any]:
    """Return guarded views of each kind, which answer 200."""
    take = locked(ANSWERED, blocking=False, **options)

    def get(self: Any, request: Any) -> HttpResponse:
        return HttpResponse(str(request.lock.guarded))

    def of_class(base: Any, method: Any = get) -> Any:
        return type("Guarded", (base,), {"get": method})

    return {
        "class": take(of_class(View)).as_view(),
        "api": of_class(APIView, take(get)).as_view(),
        "api as_view": take(of_class(APIView).as_view()),
        "async": both(take, lambda request: get(None, request))[1],
    }


def text_of(response: Any) -> str:
    return str(getattr(response, "render", lambda: response)().text.strip('"'))


@pytest.mark.parametrize("kind", views())
def test_an_answer_of_the_project(kind: str) -> None:
    def answer(request: Any, error: Exception) -> HttpResponse:
        return (Response if "api" in kind else HttpResponse)(type(error).__name__, status=418)

    view, request = views(answer=answer)[kind], RequestFactory().get("/?name=a")
    with lock("view:a", timeout=60):
        assert text_of(view(request)) == LockNotAcquired.__name__
    with unavailable():
        assert text_of(view(request)) == LockUnavailable.__name__
    assert text_of(view(RequestFactory().get("/"))) == BadRequest.__name__
    assert view(request).status_code == 200
    with pytest.raises(ZeroDivisionError):
        views(answer=lambda *_: 1 / 0)[kind](RequestFactory().get("/"))


@pytest.mark.parametrize("kind", views())
def test_a_view_that_runs_without_its_lock(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    view, request = views(on_unavailable="run")[kind], RequestFactory().get("/?name=a")
    with unavailable():
        assert view(request).content == b"False"
    assert "Entered a block without lock 'view:a'" in caplog.text
    eventually(lambda: view(request).content == b"True")  # a slow answer to a probe is none
    with lock("view:a", timeout=60):
        eventually(lambda: view(request).status_code == 409)
