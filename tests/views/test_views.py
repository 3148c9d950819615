"""``@locked`` on views of every kind: they take their lock, and release it however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from django_redis_lock.support.arguments import DEFAULT
from django_redis_lock.views import BLOCKING_TIMEOUT, MAX_HOLD, locked
from example_project.embedded import EmbeddedServer
from tests.apps import views_app
from tests.views.conftest import ADDRESSES, BROWSER, both

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]


@pytest.mark.django_db
@pytest.mark.parametrize("address", ADDRESSES)
def test_each_kind_of_view_runs_with_its_lock_alone(web: Client, address: str) -> None:
    """While another caller holds the lock it does not run; another name is another lock."""
    assert web.post(address).json() == {"name": "product:7", "held": True}
    with lock("product:7", blocking=False):
        answer = web.post(address)
        assert web.post(address.replace("7", "8")).status_code == 200
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("This is busy right now.")


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [kind for kind in views_app.KINDS if "async" in kind])
def test_asynchronous_views_under_asgi(kind: str) -> None:
    async def main() -> None:
        web = AsyncClient()
        answer = await web.post(f"/{kind}/7/")
        assert answer.json() == {"name": "product:7", "held": True}
        async with lock("product:7", timeout=60):
            assert (await web.post(f"/{kind}/7/")).status_code == 409
            assert (await web.post(f"/{kind}/7/", headers=BROWSER)).status_code == 409
        assert (await web.post(f"/{kind}/7/")).status_code == 200

    asyncio.run(main())


def test_what_other_decorators_say_is_kept() -> None:
    web = Client(enforce_csrf_checks=True)
    assert web.post("/buy/7/").status_code == 200
    assert web.get("/buy/7/").status_code == 405
    assert views_app.buy.__name__ == "buy"


def test_the_options_of_the_lock_are_passed_on() -> None:
    @locked("view", 10, metadata={"of": "tests"}, auto_renew=True, using="url")
    def answer(request: Any) -> HttpResponse:
        holder = locks["url"].holder("view")
        assert holder is not None
        assert (holder.metadata, holder.auto_renew) == ({"of": "tests"}, True)
        assert (request.lock.timeout, request.lock.blocking_timeout) == (10, BLOCKING_TIMEOUT)
        return HttpResponse(request.lock.fence)

    assert int(answer(RequestFactory().post("/")).content) > 0


def test_request_waits_as_long_as_the_alias_says(settings: Any) -> None:
    entry = {**settings.LOCKS["default"], "BLOCKING_TIMEOUT": 0.02}
    request = RequestFactory().post("/")

    def answer(request: Any) -> HttpResponse:
        return HttpResponse(str(request.lock.blocking_timeout))

    views = both(locked("view"), answer)
    settings.LOCKS = {"default": entry}
    assert [view(request).content for view in views] == [b"0.02"] * 2
    assert locked("view", blocking_timeout=None)(answer)(request).content == b"None"
    with lock("view"):
        assert [view(request).status_code for view in views] == [409] * 2


def test_reentrant_views() -> None:
    guard = locked("again", blocking=False, reentrant=True)
    view = guard(guard(lambda request: HttpResponse(request.lock.name)))
    assert view(RequestFactory().post("/")).content == b"again"
    assert locks["default"].holder("again") is None


def test_an_error_of_the_view() -> None:
    def fails(request: Any) -> HttpResponse:
        raise LookupError("the view's own")

    for view in both(locked("failing"), fails):
        with pytest.raises(LookupError, match="own"):
            view(RequestFactory().post("/"))
        assert locks["default"].holder("failing") is None


def test_a_view_that_releases_its_lock_itself() -> None:
    """That is no error; a detached lock stays held for its ticket."""

    def released(request: Any) -> HttpResponse:
        request.lock.release()
        return HttpResponse("done")

    def detached(request: Any) -> HttpResponse:
        return HttpResponse(request.lock.detach(60))

    assert locked("released")(released)(RequestFactory().post("/")).content == b"done"
    ticket = locked("detached")(detached)(RequestFactory().post("/")).content.decode()
    assert locks["default"].holder("detached").token_id == ticket  # type: ignore[union-attr]


def test_a_lock_that_was_lost() -> None:
    def losing(request: Any) -> HttpResponse:
        locks["default"].force_release("lost")
        return HttpResponse("done")

    for view in both(locked("lost"), losing):
        with pytest.raises(LockLost):
            view(RequestFactory().post("/"))


@pytest.mark.parametrize(
    ("timeout", "options", "expected"),
    [
        (DEFAULT, {}, MAX_HOLD),
        (DEFAULT, {"max_hold": None}, None),
        (10, {}, None),
        (10, {"auto_renew": True}, MAX_HOLD),
    ],
)
def test_the_limit_of_renewal(timeout: Any, options: dict[str, Any], expected: Any) -> None:
    answer = locked("view", timeout, **options)(lambda r: HttpResponse(repr(r.lock.max_hold)))
    assert answer(RequestFactory().post("/")).content.decode() == repr(expected)


def test_a_server_that_goes_away_meanwhile(
    own_server: EmbeddedServer, settings: Any, caplog: Any
) -> None:
    """What was done under the lock is done: the answer is sent, and the lease expires."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "LOCATION": own_server.url()}}

    def answer(request: Any) -> HttpResponse:
        own_server.kill()
        return HttpResponse("done")

    view, aview = both(locked("view"), answer)
    assert view(RequestFactory().post("/")).content == b"done"
    own_server.restart()
    assert aview(RequestFactory().post("/")).content == b"done"
    assert caplog.text.count("Could not release lock 'view' after a view") == 2
