"""Who may do what with the pages of held locks: every address, method and kind of visitor."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import resolve

from django_redis_lock import lock, locks
from django_redis_lock.admin import HEADER as LIVE_HEADER
from django_redis_lock.admin import HeldLockAdmin
from django_redis_lock.models import HeldLock
from tests.tools.admin import LIST, MAY_RELEASE, RELEASE, VIEW, box_of, page_of, root, staff, told

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_workers")]

MEMORY = "django_redis_lock.backends.locmem.LocMemLockBackend"
OTHERS = "release_the_shops_locks"
LIVE = {LIVE_HEADER: "live"}


@pytest.fixture(autouse=True)
def _held(settings: Any) -> None:
    """A lock of an alias that ``release_heldlock`` opens, and of one that another does."""
    settings.LOCKS = {
        "default": {"BACKEND": MEMORY},
        "shop": {
            "BACKEND": MEMORY,
            "LOCATION": "shop",
            "OPERATORS": {"RELEASE_PERMISSION": f"django_redis_lock.{OTHERS}"},
        },
    }
    for using in locks:
        lock("a", using=using, timeout=60).acquire(blocking=False)
    kind = ContentType.objects.get_for_model(HeldLock)
    Permission.objects.create(codename=OTHERS, content_type=kind)


def outsider() -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("outsider"))
    return client


VISITORS = {
    "anonymous": Client,
    "no staff": outsider,
    "staff": staff,
    "may release, not see": lambda: staff(MAY_RELEASE),
    "viewer": lambda: staff(VIEW),
    "releaser": lambda: staff(VIEW, MAY_RELEASE),
    "shop's releaser": lambda: staff(VIEW, OTHERS),
    "superuser": root,
}
LOGIN = "login"
A, SHOP = "default", "shop"


ADDRESSES = {
    "list": LIST,
    "audit": f"{LIST}audit/",
    "add": f"{LIST}add/",
    "release": RELEASE,
    "limit": f"{LIST}limit/",
    "page": page_of("a"),
    "history": page_of("a", view="history"),
    "delete": page_of("a", view="delete"),
    "key": page_of("a").removesuffix("change/"),
}
ANY = "GET HEAD POST DELETE"
NO_POST = "GET HEAD LIVE DELETE"


def ask(client: Client, what: str) -> int | str:
    """Do one thing; return the status, or that a login is required."""
    method, _, rest = what.partition(" ")
    path, _, wanted = rest.partition(" ")
    if method == "LIVE":
        response = client.get(ADDRESSES[path], headers=LIVE)
    elif wanted:
        boxes = {
            "A": [box_of("a")],
            "shop": [box_of("a", using="shop")],
            "both": [box_of("a"), box_of("a", using="shop")],
        }
        more = {"confirmed": "yes"} if method == "CONFIRMED" else {}
        if path == "list":
            more |= {"action": "release_locks", "index": "0"}
        response = client.post(ADDRESSES[path], {"_selected_action": boxes[wanted], **more})
    else:
        response = client.generic(method, ADDRESSES[path])
    if response.status_code == 302 and response.url.startswith("/admin/login/"):
        return LOGIN
    return int(response.status_code)


# Of methods and addresses, and of forms with locks: what an anonymous visitor gets, one who is no
# staff, staff, a releaser that may not see, a viewer, a releaser, a releaser of the shop's locks
# alone, and a superuser.
MATRIX: dict[str, list[int | str]] = {
    f"{ANY} LIVE list history audit": [LOGIN, LOGIN, 403, 403, 200, 200, 200, 200],
    "GET HEAD LIVE page": [LOGIN, LOGIN, 403, 403, 200, 200, 200, 200],
    "POST DELETE page": [LOGIN, LOGIN, 405, 405, 405, 405, 405, 405],
    f"{ANY} LIVE add delete": [LOGIN, LOGIN, 403, 403, 403, 403, 403, 403],
    f"{ANY} LIVE key": [LOGIN, LOGIN, 302, 302, 302, 302, 302, 302],
    f"{NO_POST} release limit": [LOGIN, LOGIN, 403, 403, 302, 302, 302, 302],
    "POST release": [LOGIN, LOGIN, 403, 403, 200, 200, 200, 200],
    "POST limit": [LOGIN, LOGIN, 403, 403, 400, 400, 400, 400],
}
FORMS: dict[str, list[int | str]] = {
    "POST list A": [LOGIN, LOGIN, 403, 403, 200, 200, 403, 200],
    "POST list shop": [LOGIN, LOGIN, 403, 403, 200, 403, 200, 200],
    "POST list both": [LOGIN, LOGIN, 403, 403, 200, 200, 200, 200],
    "POST release A": [LOGIN, LOGIN, 403, 403, 403, 200, 403, 200],
    "POST release shop": [LOGIN, LOGIN, 403, 403, 403, 403, 200, 200],
    "POST release both": [LOGIN, LOGIN, 403, 403, 403, 200, 200, 200],
    "CONFIRMED release A": [LOGIN, LOGIN, 403, 403, 403, 302, 403, 302],
    "CONFIRMED release shop": [LOGIN, LOGIN, 403, 403, 403, 403, 302, 302],
    "CONFIRMED release both": [LOGIN, LOGIN, 403, 403, 403, 302, 302, 302],
}
EACH = {
    f"{method} {address}": row
    for key, row in MATRIX.items()
    for method in key.split()
    for address in key.split()
    if method.isupper() and address.islower()
}
RELEASES = {"releaser": {A}, "shop's releaser": {SHOP}, "superuser": {A, SHOP}}
"""The aliases whose locks somebody can release."""


@pytest.mark.parametrize("visitor", VISITORS)
def test_who_may_do_what(visitor: str) -> None:
    """Only users with the permission release locks, and only when they confirm."""
    client, number = VISITORS[visitor](), list(VISITORS).index(visitor)
    for what, expected in {**EACH, **FORMS}.items():
        holders = {using: locks[using].holder("a") for using in (A, SHOP)}
        assert ask(client, what) == expected[number], what
        released = {using for using in (A, SHOP) if locks[using].holder("a") != None}  # noqa: E711
        gone = {A, SHOP} - released
        wanted = {"A": {A}, "shop": {SHOP}, "both": {A, SHOP}}.get(what.rpartition(" ")[2], set())
        may = RELEASES.get(visitor, set())
        assert gone == (wanted & may if what.startswith("CONFIRMED") else set()), what
        assert all(holders.values())
        for using in gone:
            lock("a", using=using, timeout=60).acquire(blocking=False)


def test_nothing_is_left_out() -> None:
    """The table has each method at each address of the admin, and the script's GET."""
    assert set(EACH) == {f"{method} {at}" for method in (*ANY.split(), "LIVE") for at in ADDRESSES}
    routes = {resolve(address).route for address in ADDRESSES.values()}
    urls = admin.site.get_model_admin(HeldLock).get_urls()
    assert routes == {f"{LIST[1:]}{url.pattern}" for url in urls}


class ForEachObject:
    """An authentication backend that grants locks one by one, as django-guardian does."""

    def has_perm(self, user: Any, permission: str, obj: HeldLock | None = None) -> bool:
        return bool(obj and permission == f"django_redis_lock.{OTHERS}" and obj.using == SHOP)


def test_a_permission_for_one_object_is_enough(settings: Any) -> None:
    """Of several locks only those are released; the others are named."""
    settings.AUTHENTICATION_BACKENDS = [
        "django.contrib.auth.backends.ModelBackend",
        f"{__name__}.ForEachObject",
    ]
    client = Client()
    user = get_user_model().objects.create_user("each", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename=VIEW))
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    boxes = {using: box_of("a", using=using) for using in (A, SHOP)}
    for using, offered in ((A, False), (SHOP, True)):
        page = client.get(page_of("a", using=using)).content.decode()
        assert (f'value="{boxes[using]}"' in page) == offered
    both = {"_selected_action": [*boxes.values()]}
    page = client.post(RELEASE, both)
    assert [row["hold"] for row in page.context["held"]] == [boxes[SHOP]]
    assert page.context["denied"] == ["a"]
    assert "have permission to release them:" in page.content.decode()
    page = client.post(RELEASE, {**both, "confirmed": "yes"}, follow=True)
    assert [level for level, _ in told(page)] == ["success", "error"]
    assert told(page)[1] == ("error", "You don't have permission to release “a”.")
    assert [locks[using].holder("a") is None for using in (A, SHOP)] == [False, True]


def test_who_may_not_see_a_lock_may_not_release_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a subclass may say for each."""

    def may_view(self: Any, request: Any, obj: HeldLock | None = None) -> bool:
        return obj is None or obj.using != SHOP

    monkeypatch.setattr(HeldLockAdmin, "has_view_permission", may_view)
    form = {"_selected_action": box_of("a", using=SHOP), "confirmed": "yes"}
    assert root().post(RELEASE, form).status_code == 403


GOOD = "0123456789abcdef"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        f"{GOOD}:nope:a",
        f"{GOOD}:default:",
        f"{GOOD}:default:a%0Ab",
        f"{GOOD[:-1]}:default:a",
        f"{GOOD}\n:default:a",
    ],
)
def test_a_box_that_was_tampered_with(bad: str) -> None:
    client, good = staff(VIEW, MAY_RELEASE), box_of("a")
    for path, more in {
        LIST: {"action": "release_locks", "index": "0"},
        RELEASE: {},
        f"{RELEASE}?": {"confirmed": "yes"},
    }.items():
        response = client.post(path, {"_selected_action": [good, bad], **more})
        assert response.status_code == 400
    reason = {"_selected_action": good, "confirmed": "yes", "reason": "x" * 501}
    assert client.post(RELEASE, reason).status_code == 400
    assert box_of("a") == good


def test_a_release_without_the_reason_that_is_required(settings: Any) -> None:
    settings.LOCKS = {
        **settings.LOCKS,
        "default": {"BACKEND": MEMORY, "OPERATORS": {"REASON_REQUIRED": True}},
    }
    client, before = root(), box_of("a")
    page = client.post(RELEASE, {"_selected_action": before})
    assert page.context["reason_required"] is True
    assert " required" in page.content.decode()
    data = {"confirmed": "yes", "reason": "  \t "}
    page = client.post(RELEASE, {**data, "_selected_action": before})
    assert (page.status_code, page.context["reason_error"]) == (200, "Enter a reason.")
    assert "Enter a reason." in page.content.decode()
    assert box_of("a") == before
    data["reason"] = "stuck"
    assert client.post(RELEASE, {**data, "_selected_action": before}).status_code == 302
    assert locks["default"].holder("a") is None


@pytest.mark.parametrize("path", [LIST, page_of("a")])
def test_a_page_that_refreshes_itself_does_not_keep_the_login(path: str, settings: Any) -> None:
    """A user's request may renew the session; the script's never does."""
    settings.SESSION_SAVE_EVERY_REQUEST = True
    client = staff(VIEW)
    sessions = Session.objects.values_list("expire_date", flat=True)
    ends_at = sessions.get()
    part = client.get(path, headers=LIVE)
    assert (part.status_code, b"<html" in part.content) == (200, False)
    assert LIVE_HEADER in part["Vary"]
    assert sessions.get() == ends_at
    client.get(path)
    assert sessions.get() > ends_at
