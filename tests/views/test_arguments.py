"""Names of locks, and mistakes that are found where a view is defined."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import BadRequest
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.views import View

from django_redis_lock import lock
from django_redis_lock.views import locked
from tests.views.conftest import BROWSER, both

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]


def page(request: Any, number: int = 1, size: str = "m") -> HttpResponse:
    return HttpResponse(request.lock.name)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("page:{number:03d}:{request.method}", [], "page:001:POST"),
        ("page:{number:03d}", [12], "page:012"),
        ("{number}-{size}", ["a", "b"], "a-b"),
        (lambda request, number: f"{request.method}:{number}", [7], "POST:7"),
        ("{{the}} report", [], "{the} report"),
        ("text:{number}", ["Größe 42"], "text:Größe 42"),
    ],
)
def test_names(name: Any, args: list[Any], expected: str) -> None:
    assert locked(name)(page)(RequestFactory().post("/"), *args).content.decode() == expected


def test_a_name_of_any_argument() -> None:
    """Whether a call has it is found then."""

    def view(request: Any, **kwargs: Any) -> HttpResponse:
        return page(request)

    guarded = locked("product:{slug}")(view)
    assert guarded(RequestFactory().post("/"), slug="lamp").content == b"product:lamp"
    with pytest.raises(ValueError, match="'slug', but this URL has other, request"):
        guarded(RequestFactory().post("/"), other="lamp")


@pytest.mark.django_db
def test_names_of_the_request(web: Client) -> None:
    user = get_user_model().objects.create(username="ada")
    web.force_login(user)
    assert web.post("/cart/").json()["name"] == f"cart:{user.pk}"
    assert web.post("/by-form/", {"sku": "a1"}).json()["name"] == "sku:a1"
    web.logout()
    assert web.post("/by-sku/", {"sku": "b2"}, "application/json").json()["name"] == "sku:b2"


@pytest.mark.django_db(transaction=True)
def test_names_and_pages_of_the_user_in_an_event_loop(settings: Any, tmp_path: Any) -> None:
    (tmp_path / "django_redis_lock").mkdir()
    (tmp_path / "django_redis_lock" / "locked.html").write_text("{{ request.user.username }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    user = get_user_model().objects.create(username="ada")

    async def main() -> None:
        web = AsyncClient()
        await web.aforce_login(user)
        assert (await web.post("/acart/")).json() == {"name": f"cart:{user.pk}", "held": True}
        async with lock(f"cart:{user.pk}", timeout=60):
            page = await web.post("/acart/", headers=BROWSER)
        assert (page.status_code, page.content) == (409, b"ada")

    asyncio.run(main())


@pytest.mark.parametrize("text", ["a\tb", "\0", "x" * 513, "\x85"])
def test_a_url_that_makes_no_name(text: str) -> None:
    for view in both(locked("{request.path_info}"), page):
        request = RequestFactory().post("/")
        request.path_info = text
        with pytest.raises(BadRequest):
            view(request)


@pytest.mark.django_db
@pytest.mark.parametrize("body", ["{}", "[]", '{"sku": "\\n"}', '{"sku": "\\ud800"}', '{"sku": 5}'])
def test_a_body_that_makes_no_name(web: Client, body: str) -> None:
    assert web.post("/by-sku/", body, "application/json").status_code == 400
    assert web.post("/by-form/", {"other": "a"}).status_code == 400


def test_a_callable_that_returns_no_name() -> None:
    with pytest.raises(TypeError, match="must return a str, not 7"):
        locked(lambda request: 7)(page)(RequestFactory().post("/"))  # type: ignore[arg-type,return-value]


def two(request: Any, product_id: int) -> HttpResponse:
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("product:{pk}", r"'pk', but the view takes request, product_id\."),
        ("product:{pk.x[0]}", "'pk', but"),
        ("{product_id:{width}}", "'width', but"),
        ("product:{}", "has no argument name"),
        ("product:%s", "name='product:%s' has '%s'"),
        ("", "must not be empty"),
        ("a\n{product_id}", "control characters"),
    ],
)
def test_templates_that_fit_no_request(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        locked(name)(two)


async def aanswer(request: Any, error: Exception) -> HttpResponse:
    raise AssertionError


class Two(View):
    def get(self, request: Any, product_id: int) -> HttpResponse:
        raise AssertionError

    def post(self, request: Any, product_id: int, size: str) -> HttpResponse:
        raise AssertionError


def test_templates_that_fit_no_method() -> None:
    for view in (type("Copy", (Two,), {}), Two.as_view()):
        with pytest.raises(ValueError, match="'pk', but the view takes request, product_id, size"):
            locked("product:{pk}")(view)
        assert locked("product:{product_id}:{size}")(view)


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"status": 500}, ValueError, "status=500.*409, 423 or 503"),
        ({"retry_after": 0}, ValueError, "retry_after=0"),
        ({"answer": 409}, TypeError, "answer=409 must be a function"),
        ({"answer": aanswer}, TypeError, "answer=.* that is not asynchronous"),
        ({"max_hold": 5, "timeout": 10}, ValueError, "max_hold=5.*timeout=10.*auto_renew=True"),
        ({"methods": "POST"}, ValueError, "methods='POST' must be a list of one or more of GET"),
        ({"limit": 2, "shared": True}, ValueError, "shared and limit exclude each other"),
        ({"using": None}, TypeError, "using=None must be an alias of LOCKS"),
        ({"methods": []}, ValueError, "of one or more of GET"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        locked("view", **options)


def test_what_is_no_view() -> None:
    with pytest.raises(TypeError, match="template such as"):
        locked(7)  # type: ignore[arg-type]
    bare: Any = locked(two)
    with pytest.raises(TypeError, match=r"Write @locked\('product:{product_id}'\) instead of"):
        bare(RequestFactory().post("/"))
    with pytest.raises(TypeError, match="dispatch"):
        locked("view")(dict)
    with pytest.raises(TypeError, match="generator"):
        locked("view")(lambda request: (yield))
    with pytest.raises(TypeError, match="without a request"):
        locked("view")(lambda *args: None)()
