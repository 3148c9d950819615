"""Names of locks, and mistakes that are found where a view is defined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial, wraps
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redis_lock import lock
from django_redis_lock.views import locked
from tests.views.conftest import BROWSER

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]


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
    assert web.post(address).json() == {"name": expected, "held": True}


@pytest.mark.django_db
def test_names_of_the_request(web: Client) -> None:
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
    assert web.post(f"{prefix}{part}/").status_code == 400


@pytest.mark.django_db
@pytest.mark.parametrize("body", ["{}", "[]", '{"sku": "\\n"}', '{"sku": "\\ud800"}', '{"sku": 5}'])
def test_a_body_that_makes_no_name(web: Client, body: str) -> None:
    assert web.post("/by-sku/", body, "application/json").status_code == 400
    assert web.post("/by-form/", {"other": "a"}).status_code == 400


def test_a_callable_that_returns_no_name(web: Client) -> None:
    with pytest.raises(TypeError, match="must return a str, not 7"):
        web.post("/by-bad-callable/7/")


def test_a_placeholder_that_the_url_does_not_have(web: Client) -> None:
    """If the view takes any argument, it is found at the first call."""
    with pytest.raises(ValueError, match="'slug', but this URL has other, request"):
        web.post("/with-other/lamp/")


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
        ("product:%s", "name='product:%s' has '%s'"),
        ("", "must not be empty"),
        ("a\n{product_id}", "control characters"),
        ("x" * 513, "512 characters"),
    ],
)
def test_templates_that_fit_no_request(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        locked(name)(two)


class Two(View):
    def get(self, request: Any, product_id: int) -> HttpResponse:
        raise AssertionError

    def post(self, request: Any, product_id: int, size: str) -> HttpResponse:
        raise AssertionError


@pytest.mark.parametrize("view", [type("Copy", (Two,), {}), Two.as_view()])
def test_templates_that_fit_no_method(view: Any) -> None:
    with pytest.raises(ValueError, match="'pk', but the view takes request, product_id, size"):
        locked("product:{pk}")(view)
    assert locked("product:{product_id}:{size}")(view)


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"status": 500}, ValueError, "status=500.*409, 423, 503"),
        ({"retry_after": 0}, ValueError, "retry_after=0"),
        ({"retry_after": True}, ValueError, "retry_after=True"),
        ({"timeout": 0}, ValueError, "timeout=0"),
        ({"blocking": 0.3}, TypeError, "give blocking_timeout=0.3"),
        ({"metadata": {"a": 1}}, TypeError, "metadata"),
        ({"max_hold": 0}, ValueError, "max_hold=0 is no time.*None for no limit"),
        ({"max_hold": 5, "timeout": 10}, ValueError, "max_hold=5.*timeout=10.*auto_renew=True"),
        ({"max_hold": 5, "timeout": None}, ValueError, "max_hold=5.*timeout=None"),
        ({"methods": "POST"}, TypeError, r"methods='POST' must be a list.*\['POST'\]"),
        ({"methods": ["post"]}, ValueError, r"\['post'\] must be one or more of GET"),
        ({"limit": 2, "shared": True}, ValueError, "shared and limit exclude each other"),
        ({"using": None}, TypeError, "using=None must be an alias of LOCKS"),
        ({"methods": []}, ValueError, "must be one or more of GET"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        locked("view", **options)


def module_name(request: Any, slug: str) -> str:
    return f"page:{slug}"


def bare_function() -> Any:
    @locked
    def buy(request: Any, product_id: int) -> HttpResponse:
        return HttpResponse()

    return buy


def bare_method() -> Any:
    class Buy(View):
        @locked
        def post(self, request: Any, product_id: int) -> HttpResponse:
            return HttpResponse()

    return Buy


def bare_class() -> Any:
    @locked
    class Buy(View):
        pass

    return Buy


def bare_method_decorator() -> Any:
    @method_decorator(locked, name="dispatch")
    class Buy(View):
        pass

    return Buy


@pytest.mark.parametrize(
    "define",
    [
        bare_function,
        bare_method,
        bare_class,
        bare_method_decorator,
        lambda: locked(View.as_view()),  # type: ignore[arg-type]
    ],
)
def test_a_decorator_without_a_name_is_refused_where_the_view_is_defined(
    define: Callable[[], Any],
) -> None:
    """Also if a function that makes names could be called like the view."""
    with pytest.raises(TypeError, match=r"@locked needs the name of the lock.*Write @locked\('"):
        define()


def test_functions_that_make_names() -> None:
    made = []
    for _ in range(2):

        def by_slug(request: Any, slug: str) -> str:
            return f"page:{slug}"

        made.append(by_slug)

    def answer(request: Any, slug: str) -> HttpResponse:
        return HttpResponse(request.lock.name)

    made += [cache(by_slug), lambda request, slug: f"page:{slug}", partial(by_slug), module_name]
    for source in made:
        view = locked(source)(answer)
        assert view(RequestFactory().post("/"), slug="home").content == b"page:home"


def test_a_view_that_is_found_in_the_place_of_a_name_at_a_request() -> None:
    """Not written as a decorator, it can't be told from a function that makes names."""
    view: Any = locked(two)
    with pytest.raises(TypeError, match=r"@locked needs the name of .* given <function two at"):
        view(RequestFactory().post("/"), product_id=7)


def test_what_is_no_view() -> None:
    with pytest.raises(TypeError, match="template such as"):
        locked(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"given <function two at .*> and then <WSGIRequest: POST"):
        locked(two)(RequestFactory().post("/"))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="dispatch"):
        locked("view")(dict)
    with pytest.raises(TypeError, match="generator"):
        locked("view")(lambda request: (yield))
    with pytest.raises(TypeError, match="without a request"):
        locked("view")(lambda *args: None)()


@pytest.mark.parametrize(
    ("name", "view", "takes_one"),
    [
        ("a", lambda: None, False),
        ("{product_id}", lambda product_id: None, False),
        ("a", lambda self: None, False),
        ("{pk}", lambda self, pk: None, False),
        ("a", type("Page", (View,), {"get": lambda self: None}), False),
        ("{product_id}", lambda _, product_id: None, True),
        ("{request.user}", lambda request: None, True),
        ("{pk}", lambda *args, **kwargs: None, True),
        ("{pk}", lambda self, *args, pk: None, True),
        ("{pk}", partial(lambda shop, request, pk: None, 7), True),
        ("a", wraps(lambda: None)(lambda *args, **kwargs: None), True),
        ("{pk}", type("Page", (View,), {"get": lambda self, request, pk: None}), True),
    ],
)
def test_views_take_a_request(name: str, view: Any, takes_one: bool) -> None:
    with nullcontext() if takes_one else pytest.raises(TypeError, match="takes no request"):
        locked(name)(view)
