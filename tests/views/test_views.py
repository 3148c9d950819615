"""``@locked``: views of every kind take their lock, answer without it, and let go of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.utils import translation
from django.views import View

from django_redis_lock import lock, locks, signals
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.support.arguments import DEFAULT
from django_redis_lock.views.decorator import BLOCKING_TIMEOUT, MAX_HOLD, locked
from django_redis_lock.views.refusals import RETRY_AFTER, STATUSES
from example_project.embedded import EmbeddedServer, free_port
from tests.apps import views_app
from tests.tools import Background, eventually, waiters

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ADDRESSES = [
    *[f"/{kind}/7/" for kind in views_app.KINDS],
    "/api/products/7/",
    "/api/products/7/inner/",
    "/api/products/7/outer/",
    "/api/on-view-set/7/",
]


@pytest.fixture
def web() -> Client:
    """A client that hears of the errors of views."""
    return Client()


def view(**options: Any) -> Callable[..., HttpResponse]:
    """Return a guarded view that only answers."""

    @locked("view", blocking=False, **options)
    def answer(request: Any) -> HttpResponse:
        return HttpResponse("done")

    return answer


def refused(headers: dict[str, str] | None = None, **options: Any) -> HttpResponse:
    """Return what a view answers whose lock is held by somebody else."""
    with lock("view", timeout=60):
        return view(**options)(RequestFactory().post("/", headers=headers or {}))


# Every kind of view.


@pytest.mark.django_db
@pytest.mark.parametrize("address", ADDRESSES)
def test_each_kind_of_view_holds_its_lock(web: Client, address: str) -> None:
    """The lock is held while the view runs, by its name, and free afterwards."""
    answer = web.post(address)
    assert answer.json() == {"name": "product:7", "held": True}
    assert locks["default"].holder("product:7") is None


@pytest.mark.django_db
@pytest.mark.parametrize("address", ADDRESSES)
def test_each_kind_of_view_is_refused_without_its_lock(web: Client, address: str) -> None:
    """While somebody else holds the lock the view does not run; another name is another lock."""
    with lock("product:7", timeout=60):
        answer = web.post(address)
        assert web.post(address.replace("7", "8")).status_code == 200
    assert answer.status_code == 409
    assert answer.json()["error"] == "locked"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [kind for kind in views_app.KINDS if "async" in kind])
def test_asynchronous_views_under_asgi(kind: str) -> None:
    """The same in an event loop."""

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
    """Attributes, names and documentation pass through, and so does the order of decorators."""
    web = Client(enforce_csrf_checks=True)
    assert web.post("/buy/7/").status_code == 200
    assert web.get("/buy/7/").status_code == 405
    assert views_app.buy.__name__ == "buy"


def test_the_options_of_the_lock_are_passed_on(web: Client) -> None:
    """The lease, the metadata and the fence are those of the lock that was asked for."""
    seen: list[Any] = []

    @locked("view", 10, metadata={"of": "tests"}, auto_renew=True, using="url")
    def answer(request: Any) -> HttpResponse:
        seen.append((request.lock, locks["url"].holder("view")))
        return HttpResponse(request.lock.fence)

    assert int(answer(RequestFactory().post("/")).content) > 0
    held, holder = seen[0]
    assert holder.metadata == {"of": "tests"}
    assert holder.auto_renew
    assert held.timeout == 10
    assert held.blocking_timeout == BLOCKING_TIMEOUT


def test_reentrant_views(web: Client) -> None:
    """A view may be entered by the view that holds its lock."""
    assert web.post("/again/").json() == {"name": "again", "held": True}
    assert locks["default"].holder("again") is None


@pytest.mark.django_db
def test_two_locks(web: Client) -> None:
    """Both are held, and ``request.lock`` is the inner one."""
    answer = web.post("/both/").json()
    assert answer["names"] == ["inner", "outer"]
    assert answer["name"] == "inner"
    assert list(locks["default"].holders()) == []


def test_a_request_waits_for_its_turn() -> None:
    """Without ``blocking=False`` it stands in line, and runs when the lock comes free."""
    answer = locked("view")(lambda request: HttpResponse("done"))
    held = lock("view", timeout=60)
    held.acquire()
    request = Background(lambda: answer(RequestFactory().post("/")))
    eventually(lambda: waiters("view") == 1)
    held.release()
    assert request.outcome().status_code == 200


def test_a_wait_that_runs_out() -> None:
    """After ``blocking_timeout`` the request is refused, and out of the line."""
    answer = locked("view", blocking_timeout=0.05)(lambda request: HttpResponse("done"))
    with lock("view", timeout=60):
        assert answer(RequestFactory().post("/")).status_code == 409
        assert waiters("view") == 0


# Names.


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/with-default/", "page:001:POST"),
        ("/with-default/12/", "page:012:POST"),
        ("/unnamed/a/b/", "a-b"),
        ("/by-callable/7/", "POST:7"),
        ("/the-report/", "{the} report"),
        ("/by-text/Größe 42/", "text:Größe 42"),
        ("/with-any/lamp/", "product:lamp"),
    ],
)
def test_names(web: Client, address: str, expected: str) -> None:
    """Templates take arguments of the URL, unnamed and default ones too; callables take all."""
    assert web.post(address).json() == {"name": expected, "held": True}


@pytest.mark.django_db
def test_names_of_the_request(web: Client) -> None:
    """Templates reach into the request, that of Django REST framework as well."""
    user = get_user_model().objects.create(username="ada")
    web.force_login(user)
    assert web.post("/cart/").json()["name"] == f"cart:{user.pk}"
    assert web.post("/by-form/", {"sku": "a1"}).json()["name"] == "sku:a1"
    web.logout()
    assert web.post("/by-sku/", {"sku": "b2"}, "application/json").json()["name"] == "sku:b2"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("address", ["/acart/", "/acart-by-callable/"])
def test_names_and_pages_of_the_user_in_an_event_loop(
    settings: Any, tmp_path: Any, address: str
) -> None:
    """Who asks is read from the database, for the name and for the page of a refusal."""
    (tmp_path / "django_redis_lock").mkdir()
    (tmp_path / "django_redis_lock" / "locked.html").write_text("{{ request.user.username }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    user = get_user_model().objects.create(username="ada")

    async def main() -> None:
        web = AsyncClient()
        await web.aforce_login(user)
        assert (await web.post(address)).json() == {"name": f"cart:{user.pk}", "held": True}
        async with lock(f"cart:{user.pk}", timeout=60):
            page = await web.post(address, headers=BROWSER)
        assert (page.status_code, page.content) == (409, b"ada")

    asyncio.run(main())


@pytest.mark.django_db
@pytest.mark.parametrize("prefix", ["/by-text/", "/aby-text/"])
@pytest.mark.parametrize("part", ["a%09b", "%00", "x" * 513, "%C2%85"])
def test_a_url_that_makes_no_name(web: Client, prefix: str, part: str) -> None:
    """What a client wrote into the URL is the client's mistake: 400, and nothing runs."""
    assert web.post(f"{prefix}{part}/").status_code == 400


@pytest.mark.django_db
@pytest.mark.parametrize("body", ["{}", "[]", '"a"', '{"sku": "\\n"}', '{"sku": "\\ud800"}'])
def test_a_body_that_makes_no_name(web: Client, body: str) -> None:
    """The same for what is missing in the body, or wrong."""
    assert web.post("/by-sku/", body, "application/json").status_code == 400
    assert web.post("/by-form/", {"other": "a"}).status_code == 400


def test_a_callable_that_returns_no_name(web: Client) -> None:
    """That is the developer's mistake."""
    with pytest.raises(TypeError, match="must return a str, not 7"):
        web.post("/by-bad-callable/7/")


def test_a_placeholder_that_the_url_does_not_have(web: Client) -> None:
    """Where the view takes anything, it is found at the first call."""
    with pytest.raises(ValueError, match="'slug', but this URL has other, request"):
        web.post("/with-other/lamp/")


# Mistakes that are found where the view is defined.


def two(request: Any, product_id: int) -> HttpResponse:
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("product:{pk}", r"'pk', but the view takes request, product_id\."),
        ("product:{pk.x[0]}", "'pk', but"),
        ("{product_id:{width}}", "'width', but"),
        ("product:{}", "without a name"),
        ("product:{0}", "without a name"),
        ("product:{product_id", "not a valid template"),
        ("product:}", "not a valid template"),
        ("", "must not be empty"),
        ("a\n{product_id}", "control characters"),
        ("x" * 513, "512 characters"),
    ],
)
def test_templates_that_fit_no_request(name: str, expected: str) -> None:
    """The error names the placeholder, and those there are."""
    with pytest.raises(ValueError, match=expected):
        locked(name)(two)


def test_a_template_for_a_view_without_arguments() -> None:
    """Whatever the view calls its request, the template calls it so."""
    with pytest.raises(ValueError, match=r"'req', but the view takes request\."):
        locked("{req.path}")(lambda req: HttpResponse("done"))
    assert locked("{request.path}")(lambda req: HttpResponse("done"))


class Two(View):
    """A view with two methods."""

    def get(self, request: Any, product_id: int) -> HttpResponse:
        raise AssertionError

    def post(self, request: Any, product_id: int, size: str) -> HttpResponse:
        raise AssertionError


@pytest.mark.parametrize("view", [type("Copy", (Two,), {}), Two.as_view()])
def test_templates_that_fit_no_method(view: Any) -> None:
    """Of a class, the methods are looked at."""
    with pytest.raises(ValueError, match="'pk', but the view takes request, product_id, size"):
        locked("product:{pk}")(view)
    assert locked("product:{product_id}:{size}")(view)


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"status": 500}, ValueError, "status=500.*409, 423, 503"),
        ({"status": "409"}, ValueError, "status='409'"),
        ({"retry_after": 0}, ValueError, "retry_after=0"),
        ({"retry_after": 1.5}, ValueError, "retry_after=1.5"),
        ({"retry_after": True}, ValueError, "retry_after=True"),
        ({"timeout": 0}, ValueError, "timeout=0"),
        ({"blocking": False, "blocking_timeout": 1}, ValueError, "blocking=False"),
        ({"metadata": {"a": 1}}, TypeError, "metadata"),
        ({"max_hold": 0}, ValueError, "max_hold=0 is no time to hold a lock.*None for no limit"),
        ({"max_hold": True}, ValueError, "max_hold=True"),
        ({"max_hold": "60"}, TypeError, "max_hold must be seconds.*'60'"),
        ({"max_hold": 5, "timeout": 10}, ValueError, "max_hold=5.*timeout=10.*auto_renew=True"),
        ({"max_hold": 5, "timeout": None}, ValueError, "max_hold=5.*timeout=None"),
        ({"methods": "POST"}, TypeError, r"methods='POST' must be a list.*\['POST'\]"),
        (
            {"methods": ["post"]},
            ValueError,
            "'post', which is not an HTTP method; choose from",
        ),
        ({"methods": [["POST"]]}, ValueError, "which is not an HTTP method"),
        ({"methods": []}, ValueError, "never be taken"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    """They are refused before there is a view."""
    with pytest.raises(error, match=expected):
        locked("view", **options)


def test_what_is_no_view() -> None:
    """A forgotten name, a class without dispatch() and a generator are refused."""
    with pytest.raises(TypeError, match="template such as"):
        locked(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Pass the name of the lock first"):
        locked(two)(RequestFactory().post("/"))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="dispatch"):
        locked("view")(dict)
    with pytest.raises(TypeError, match="generator"):
        locked("view")(lambda request: (yield))
    with pytest.raises(TypeError, match="without a request"):
        locked("view")(lambda: None)()


# Methods.

METHODS = ("GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE", "PURGE")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"POST", "PUT", "PATCH", "DELETE", "PURGE"}),
        ({"methods": ["POST"]}, {"POST"}),
        ({"methods": {"GET", "HEAD"}}, {"GET", "HEAD"}),
    ],
)
def test_the_methods_that_take_the_lock(options: dict[str, Any], expected: set[str]) -> None:
    """The others run without it, while somebody else holds it, and whatever its name would be."""

    def answer(request: Any) -> HttpResponse:
        return HttpResponse(repr(request.lock))

    async def aanswer(request: Any) -> HttpResponse:
        return answer(request)

    view = locked("{request.GET[name]}", blocking=False, **options)(answer)
    aview = locked("{request.GET[name]}", blocking=False, **options)(aanswer)
    with lock("view", timeout=60):
        for method in METHODS:
            wanted = 409 if method in expected else 200
            request = RequestFactory().generic(method, "/?name=view")
            for got in (view(request), asyncio.run(aview(request))):
                assert got.status_code == wanted, method
                assert wanted == 409 or got.content == b"None"
            assert method in expected or view(RequestFactory().generic(method, "/")).content


def test_a_method_that_only_the_outer_lock_is_for(web: Client) -> None:
    """The view finds that."""

    @locked("outer", methods=["GET"])
    @locked("inner")
    def answer(request: Any) -> HttpResponse:
        return HttpResponse(request.lock.name)

    assert answer(RequestFactory().get("/")).content == b"outer"
    assert answer(RequestFactory().post("/")).content == b"inner"


# Answers.


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_that_was_chosen(status: int) -> None:
    """And a 503 says when to come again."""
    answer = refused(status=status)
    assert answer.status_code == status
    assert answer.headers.get("Retry-After") == (str(RETRY_AFTER) if status == 503 else None)


def test_when_to_come_again() -> None:
    """Retry-After is sent with any status where it is wanted."""
    assert refused(retry_after=3)["Retry-After"] == "3"
    assert refused(retry_after=3, status=503)["Retry-After"] == "3"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        (BROWSER["accept"], "text/html"),
        ("text/html", "text/html"),
        ("text/html;q=0.5, application/json", "application/json"),
        ("image/png", "application/json"),
    ],
)
def test_json_or_html(accept: str | None, kind: str) -> None:
    """As the client prefers."""
    answer = refused({"accept": accept} if accept else {})
    assert answer["Content-Type"].startswith(kind)
    assert "Accept" in answer["Vary"]
    if kind == "text/html":
        assert "Somebody else is doing this right now." in answer.content.decode()
    else:
        assert json.loads(answer.content) == {
            "error": "locked",
            "detail": "Somebody else is doing this right now. Please try again in a moment.",
        }


def test_the_language_of_the_client(web: Client) -> None:
    """Both forms are translated, and the page says in which language it is."""
    with lock("product:7", timeout=60), translation.override("en"):  # in force again afterwards
        page = web.post("/buy/7/", headers={**BROWSER, "accept-language": "de"})
        data = web.post("/buy/7/", headers={"accept-language": "de"})
    assert '<html lang="de">' in page.content.decode()
    assert "Das tut gerade jemand anderes." in page.content.decode()
    assert "Das tut gerade jemand anderes." in data.json()["detail"]
    assert "Accept-Language" in page["Vary"]


def test_a_template_of_the_project(settings: Any, tmp_path: Any) -> None:
    """It goes before ours, and has the request."""
    (tmp_path / "django_redis_lock").mkdir()
    page = tmp_path / "django_redis_lock" / "locked.html"
    page.write_text("{{ status }} {{ error }} {{ request.path }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    assert refused(BROWSER).content == b"409 locked /"


def test_a_project_without_templates(settings: Any, caplog: Any) -> None:
    """It answers in JSON, and says so in the log."""
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False}]
    answer = refused(BROWSER)
    assert answer.status_code == 409
    assert answer["Content-Type"] == "application/json"
    assert "APP_DIRS" in caplog.text


@contextmanager
def unreachable(settings: Any) -> Iterator[None]:
    """Let nobody listen where the server should be."""
    location = f"redis://127.0.0.1:{free_port()}/0"
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "LOCATION": location}}
    yield
    locks.reset()


@pytest.mark.parametrize("kind", ["async", "on-api-method"])
def test_an_unreachable_server(web: Client, settings: Any, kind: str) -> None:
    """The view does not run, and the answer is 503 with the time to come again."""
    with unreachable(settings):
        answer = web.post(f"/{kind}/7/")
    assert answer.status_code == 503
    assert answer.json()["error"] == "unavailable"
    assert answer["Retry-After"] == str(RETRY_AFTER)


def test_the_page_about_an_unreachable_server(web: Client, settings: Any) -> None:
    """A person is told in words."""
    with unreachable(settings):
        page = web.post("/on-class/7/", headers=BROWSER)
    assert page.status_code == 503
    assert "This can&#x27;t be done at the moment." in page.content.decode()


# How views end.


@pytest.mark.parametrize("address", ["/failing/", "/afailing/"])
def test_an_error_of_the_view(web: Client, address: str) -> None:
    """It reaches Django, and the lock is free."""
    with pytest.raises(LookupError, match="own"):
        web.post(address)
    assert locks["default"].holder("failing") is None


def test_a_streaming_response(web: Client) -> None:
    """The lock is free once the view has returned, before the stream is read."""
    assert web.post("/streaming/").getvalue() == b"None"


def test_a_view_that_releases_its_lock_itself(web: Client) -> None:
    """That is no error, and neither is passing it on: it stays with the ticket."""
    assert web.post("/released/").content == b"done"
    ticket = web.post("/detached/").content.decode()
    holder = locks["default"].holder("detached")
    assert holder is not None
    assert holder.token_id == ticket


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("address", ["/losing/", "/alosing/"])
def test_a_lock_that_was_lost(web: Client, address: str) -> None:
    """Nobody is told that all went well."""
    with pytest.raises(LockLost):
        web.post(address)


@pytest.mark.parametrize(
    ("timeout", "options", "expected"),
    [
        (DEFAULT, {}, MAX_HOLD),
        (DEFAULT, {"max_hold": None}, None),
        (DEFAULT, {"max_hold": 5}, 5.0),
        (10, {}, None),
        (10, {"auto_renew": True}, MAX_HOLD),
        (None, {}, None),
    ],
)
def test_the_limit_of_renewal(timeout: Any, options: dict[str, Any], expected: Any) -> None:
    """A lease that is renewed has one, unless it is not wanted; others end by themselves."""
    answer = locked("view", timeout, **options)(lambda r: HttpResponse(repr(r.lock._max_hold)))
    assert answer(RequestFactory().post("/")).content.decode() == repr(expected)


def test_a_view_that_takes_longer_than_max_hold() -> None:
    """It is told, others get the lock, and nobody is told that all went well."""
    ended: list[str] = []

    def see_it_lost(request: Any) -> HttpResponse:
        eventually(lambda: request.lock.lost)
        with lock("view", blocking_timeout=10):
            ended.append(request.method)
        return HttpResponse("done")

    async def asee_it_lost(request: Any) -> HttpResponse:
        return await sync_to_async(see_it_lost)(request)

    with pytest.raises(LockLost):
        locked("view", max_hold=0.1)(see_it_lost)(RequestFactory().post("/"))
    with pytest.raises(LockLost):
        asyncio.run(locked("view", max_hold=0.1)(asee_it_lost)(RequestFactory().put("/")))
    assert ended == ["POST", "PUT"]


def test_an_error_is_not_hidden_by_a_lost_lock(web: Client, caplog: Any) -> None:
    """The view's own error comes first; the loss is in the log."""
    with pytest.raises(LookupError, match="own"):
        web.post("/losing-and-failing/")
    assert "The release of lock 'lost' failed after a view" in caplog.text


def test_a_server_that_goes_away_meanwhile(
    own_server: EmbeddedServer, settings: Any, caplog: Any
) -> None:
    """What was done under the lock was done: the answer is sent, and the lease ends by itself."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "LOCATION": own_server.url()}}

    @locked("view")
    def answer(request: Any) -> HttpResponse:
        own_server.kill()
        return HttpResponse("done")

    @locked("view")
    async def aanswer(request: Any) -> HttpResponse:
        own_server.kill()
        return HttpResponse("done")

    assert answer(RequestFactory().post("/")).content == b"done"
    own_server.restart()
    assert asyncio.run(aanswer(RequestFactory().post("/"))).content == b"done"
    assert caplog.text.count("The release of lock 'view' failed after a view") == 2


def test_a_cancelled_view() -> None:
    """Cancelled while it runs it lets go of the lock; while it waits, of its place in line."""
    begun = asyncio.Event

    async def main() -> None:
        running = begun()

        @locked("view")
        async def answer(request: Any) -> HttpResponse:
            running.set()
            await asyncio.sleep(60)
            raise AssertionError

        first = asyncio.create_task(answer(RequestFactory().post("/")))
        await running.wait()
        second = asyncio.create_task(answer(RequestFactory().post("/")))
        while not await locks["default"].awaiting("view"):
            await asyncio.sleep(0.01)
        for task in (second, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await locks["default"].awaiting("view") == []
        assert await locks["default"].aholder("view") is None

    asyncio.run(main())


# Transactions.


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    """Let each request be a transaction."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


@pytest.fixture
def moments() -> Iterator[list[tuple[str, bool]]]:
    """Return a list of what happened to locks, and whether in a transaction."""
    seen: list[tuple[str, bool]] = []

    def acquired(**arguments: Any) -> None:
        seen.append(("acquired", connection.in_atomic_block))

    def released(**arguments: Any) -> None:
        seen.append(("released", connection.in_atomic_block))

    signals.lock_acquired.connect(acquired)
    signals.lock_released.connect(released)
    yield seen
    signals.lock_acquired.disconnect(acquired)
    signals.lock_released.disconnect(released)


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("kind", views_app.ATOMIC)
def test_the_transaction_is_inside_of_the_lock(
    web: Client, moments: list[tuple[str, bool]], kind: str
) -> None:
    """It begins when the lock is held, and has ended before the lock is released."""
    answer = web.post(f"/{kind}/")
    assert answer.json() == {"name": "atomic", "held": True, "atomic": True}
    assert moments == [("acquired", False), ("released", False)]


@pytest.mark.usefixtures("atomic_requests")
def test_the_transaction_is_inside_of_both_locks(
    web: Client, moments: list[tuple[str, bool]]
) -> None:
    """With two locks it begins after the second."""
    assert web.post("/both/").json()["atomic"]
    assert moments == [(moment, False) for moment in ["acquired"] * 2 + ["released"] * 2]


@pytest.mark.usefixtures("atomic_requests")
def test_a_method_is_inside_of_the_transaction(
    web: Client, moments: list[tuple[str, bool]]
) -> None:
    """Django has begun it by then, but the lock is released after its end."""
    assert web.post("/atomic-method/").json()["atomic"]
    assert moments == [("acquired", True), ("released", False)]


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("address", ["/declined-below/", "/declined-above/"])
def test_a_declined_transaction(web: Client, address: str) -> None:
    """``non_atomic_requests`` is heard, above our decorator and below."""
    assert web.post(address).json()["atomic"] is False


@pytest.mark.usefixtures("atomic_requests")
def test_an_error_rolls_back(web: Client) -> None:
    """As in any view of such a project."""
    with pytest.raises(LookupError, match="own"):
        web.post("/writing/")
    assert not get_user_model().objects.exists()


@pytest.mark.usefixtures("atomic_requests")
def test_a_lost_lock_rolls_back(web: Client) -> None:
    """Nothing is committed that was done without the lock."""
    with pytest.raises(LockLost):
        web.post("/losing/")
    assert not get_user_model().objects.exists()


@pytest.mark.usefixtures("atomic_requests")
def test_a_view_that_takes_longer_than_max_hold_rolls_back() -> None:
    """What it did until then, and afterwards."""

    @locked("view", max_hold=0.1)
    def answer(request: Any) -> HttpResponse:
        get_user_model().objects.create(username="ghost")
        eventually(lambda: request.lock.lost)
        return HttpResponse("done")

    with pytest.raises(LockLost):
        answer(RequestFactory().post("/"))
    assert not get_user_model().objects.exists()


@pytest.mark.usefixtures("atomic_requests")
def test_without_the_lock_there_is_a_transaction_all_the_same() -> None:
    """Django leaves it to us then, too."""
    answer = locked("view")(lambda request: HttpResponse(str(connection.in_atomic_block)))
    assert answer(RequestFactory().get("/")).content == b"True"


@pytest.mark.usefixtures("atomic_requests")
def test_a_server_that_goes_away_rolls_back(own_server: EmbeddedServer, settings: Any) -> None:
    """Whether the lock is held can't be known, so nothing is done, and the client may try again."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "LOCATION": own_server.url()}}

    @locked("view")
    def answer(request: Any) -> HttpResponse:
        get_user_model().objects.create(username="ghost")
        own_server.kill()
        return HttpResponse("done")

    assert answer(RequestFactory().post("/")).status_code == 503
    assert not get_user_model().objects.exists()


@pytest.mark.usefixtures("atomic_requests")
def test_the_unavailability_of_another_lock_is_the_views_own(settings: Any) -> None:
    """Only what concerns the view's own lock is answered for it."""
    location = f"redis://127.0.0.1:{free_port()}/0"
    settings.LOCKS = {**settings.LOCKS, "gone": {**settings.LOCKS["url"], "LOCATION": location}}

    @locked("view")
    def answer(request: Any) -> HttpResponse:
        with lock("other", using="gone"):
            raise AssertionError

    with pytest.raises(LockUnavailable):
        answer(RequestFactory().post("/"))
    assert locks["default"].holder("view") is None


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize(
    "kind", ["async", "on-async-class", "on-async-dispatch", "on-async-as-view"]
)
def test_asynchronous_views_have_no_transaction(web: Client, kind: str) -> None:
    """Django refuses them then, and so do we."""
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        web.post(f"/{kind}/7/")


def test_a_class_of_views_stays_a_class() -> None:
    """It can be inherited from, and its base is left alone."""
    assert issubclass(views_app.OnClass, View)
    assert not hasattr(View.dispatch, "_non_atomic_requests")
