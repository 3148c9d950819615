"""Held locks in the admin: who sees what, the list, and the page of a lock."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_redis_lock import lock, locks
from django_redis_lock.admin.durations import duration
from django_redis_lock.admin.live import HEADER as LIVE_HEADER
from django_redis_lock.models import HeldLock
from tests.tools import Background, eventually, waiters
from tests.tools.admin import (
    LIST,
    MAY_RELEASE,
    RELEASE,
    VIEW,
    hold_as,
    names,
    page_of,
    root,
    staff,
    ticket,
    told,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


# Who sees what.


@pytest.mark.parametrize("permissions", [(), (MAY_RELEASE,)])
def test_staff_without_the_permission_see_nothing(permissions: tuple[str, ...], name: str) -> None:
    """Without ``view_heldlock`` there is no trace of held locks, and no page opens."""
    lock(name, timeout=60).acquire()
    client = staff(*permissions)
    assert "Held locks" not in client.get("/admin/").content.decode()
    for path in (LIST, page_of(name), page_of(name, view="history")):
        assert client.get(path).status_code == 403
    for path in (LIST, RELEASE):
        assert client.post(path, {"_selected_action": ticket(name)}).status_code == 403


def test_a_viewer_sees_and_cannot_release(name: str) -> None:
    """``view_heldlock`` shows the list and the page, without boxes, actions and buttons."""
    lock(name, timeout=60).acquire()
    client = staff(VIEW)
    assert "Held locks" in client.get("/admin/").content.decode()
    for path in (LIST, page_of(name)):
        page = client.get(path).content.decode()
        assert name in page
        assert "Release" not in page
        assert "_selected_action" not in page
    data = {"_selected_action": ticket(name), "action": "release_locks", "index": "0"}
    assert client.post(LIST, data).status_code == 200
    assert client.post(RELEASE, {**data, "confirmed": "yes"}).status_code == 403
    assert locks["default"].holder(name) is not None


def test_pages_need_a_login(name: str) -> None:
    client = root()
    client.logout()
    for path in (LIST, RELEASE, page_of(name)):
        assert client.get(path).url.startswith("/admin/login/")


# The list.


def test_the_list_tells_who_holds_what(client: redis.Redis) -> None:
    """The columns: name, holder, held for, lease left, waiters, fence, backend."""
    hold_as(
        client,
        "import:7",
        ttl=13,
        held_for=125,
        host="web-1",
        pid=42,
        auto_renew=True,
        lease=30_000,
        task_id="8c1f",
        task_name="shop.tasks.import_products",
    )
    waiting = Background(lambda: lock("import:7", blocking_timeout=60).acquire())
    eventually(lambda: waiters("import:7") == 1)
    page = root().get(LIST)
    (row,) = page.context["cl"].result_list
    columns = admin.site.get_model_admin(HeldLock)
    shown = {name: str(getattr(columns, name)(row)) for name in columns.list_display}
    assert "import:7" in shown["lock"]
    for part in ("shop.<wbr>tasks.<wbr>import_products", "8c1f", "web-1:42"):
        assert part in shown["holder"]
    assert re.search(r">2 min \d+ s<", shown["held_for"])
    assert re.search(r">1\d s<", shown["lease_left"])
    assert "renewal is late" in shown["lease_left"]
    assert ">1<" in shown["waiters"]
    assert f">{locks['default'].holder('import:7').fence}<" in shown["fence"]  # type: ignore[union-attr]
    assert ">default<" in shown["backend"]
    assert all(text in page.content.decode() for text in shown.values())
    locks["default"].force_release("import:7")
    assert waiting.outcome()
    locks["default"].force_release("import:7")


def test_a_lock_that_is_renewed_for_the_last_time(client: redis.Redis) -> None:
    """No warning while its lease runs down to ``max_hold``, and no claim that it is renewed."""
    record = {"auto_renew": True, "lease": 30_000, "max_hold": 60_000}
    hold_as(client, "view", ttl=9, held_for=51, **record)
    browser = root()
    (row,) = browser.get(LIST).context["cl"].result_list
    left = str(admin.site.get_model_admin(HeldLock).lease_left(row))
    assert "renew" not in left
    page = browser.get(page_of("view"))
    facts = {str(label): str(value) for label, value in page.context["facts"]}
    assert facts["Renewed for at most"] == "1 min"
    assert "Last renewed at" not in page.content.decode()


def test_a_lock_of_another_program_and_one_without_end(client: redis.Redis) -> None:
    """Unknown values are left empty."""
    client.set("lock:foreign", "xyz", px=60_000)
    client.zadd("lock-index", {"foreign": 2_000_000_000_000})
    hold_as(client, "endless", ttl=None)
    page = root().get(f"{LIST}?o=1")
    assert names(page) == ["endless", "foreign"]
    text = page.content.decode()
    assert "another program" in text
    assert "without end" in text


def test_nothing_is_held() -> None:
    """An empty list says so, and so does one that a search has emptied."""
    client = root()
    assert "No lock is held." in client.get(LIST).content.decode()
    lock("a", timeout=60).acquire()
    text = client.get(f"{LIST}?q=zzz").content.decode()
    assert "None of the held locks matches." in text
    assert "0 results" in text


@pytest.fixture
def crowd(client: redis.Redis) -> None:
    """Five locks that differ in everything."""
    hold_as(
        client,
        "b-task",
        held_for=40,
        ttl=14,
        auto_renew=True,
        lease=30_000,
        task_id="1",
        task_name="t.one",
    )
    hold_as(
        client,
        "a-task",
        held_for=10,
        ttl=25,
        auto_renew=True,
        lease=30_000,
        task_id="2",
        task_name="t.two",
    )
    hold_as(client, "fixed", held_for=50, ttl=500, host="db-9", metadata={"user": "Ada"})
    hold_as(client, "endless", held_for=30, ttl=None)
    lock("other", timeout=90, using="url").acquire()


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"b-task", "a-task", "fixed", "endless", "other"}),
        ("using=url", {"other"}),
        ("using=default", {"b-task", "a-task", "fixed", "endless"}),
        ("using=nope", set()),
        ("lease=attention", {"b-task"}),
        ("lease=endless", {"endless"}),
        ("lease=nope", set()),
        ("waiting=yes", set()),
        ("waiting=no", {"b-task", "a-task", "fixed", "endless", "other"}),
        ("task=*", {"b-task", "a-task"}),
        ("task=-", {"fixed", "endless", "other"}),
        ("task=t.two", {"a-task"}),
        ("task=gone", set()),
        ("q=TASK", {"b-task", "a-task"}),
        ("q=t.one", {"b-task"}),
        ("q=db-9", {"fixed"}),
        ("q=ada", {"fixed"}),
        ("q=user+db", {"fixed"}),
        ("q=ada+nobody", set()),
        ("q=task&task=t.one", {"b-task"}),
    ],
)
def test_filters_and_search(query: str, expected: set[str]) -> None:
    """Each filter and each searched word keeps what it says; they work together."""
    page = root().get(f"{LIST}?{query}")
    assert set(names(page)) == expected


def test_the_filter_of_those_who_wait() -> None:
    held = lock("busy", timeout=60)
    held.acquire()
    lock("calm", timeout=60).acquire()
    waiting = Background(lambda: lock("busy", timeout=60, blocking_timeout=60).acquire())
    eventually(lambda: waiters("busy") == 1)
    client = root()
    assert names(client.get(f"{LIST}?waiting=yes")) == ["busy"]
    assert names(client.get(f"{LIST}?waiting=no")) == ["calm"]
    held.release()
    assert waiting.outcome()


@pytest.mark.usefixtures("crowd")
def test_the_filter_offers_the_tasks_that_hold_locks() -> None:
    """The choices are the current tasks, and the chosen one even if it holds nothing any more."""
    page = root().get(f"{LIST}?task=gone").content.decode()
    for name in ("t.one", "t.two", "gone"):
        assert f'?task={name}">{name}</a>' in page


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", ["fixed", "b-task", "endless", "a-task", "other"]),
        ("o=1", ["a-task", "b-task", "endless", "fixed", "other"]),
        ("o=-1", ["other", "fixed", "endless", "b-task", "a-task"]),
        ("o=3", ["other", "a-task", "endless", "b-task", "fixed"]),
        ("o=4", ["b-task", "a-task", "other", "fixed", "endless"]),
        ("o=-4", ["endless", "fixed", "other", "a-task", "b-task"]),
        ("o=5", ["a-task", "b-task", "endless", "fixed", "other"]),
        ("o=5.1", ["a-task", "b-task", "endless", "fixed", "other"]),
        ("o=6", ["fixed", "b-task", "endless", "a-task", "other"]),
        ("o=-7.1", ["other", "a-task", "b-task", "endless", "fixed"]),
        ("o=99.x.1", ["a-task", "b-task", "endless", "fixed", "other"]),
    ],
)
def test_sorting(order: str, expected: list[str]) -> None:
    assert names(root().get(f"{LIST}?{order}")) == expected


def test_sorting_by_holder(client: redis.Redis) -> None:
    hold_as(client, "one", host="b")
    hold_as(client, "two", host="a")
    assert names(root().get(f"{LIST}?o=2")) == ["two", "one"]


def test_paging(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page beyond the last one shows the last, since locks go away."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "list_per_page", 2)
    for number in range(5):
        hold_as(client, f"n-{number}")
    browser = root()
    assert names(browser.get(f"{LIST}?o=1&p=2")) == ["n-2", "n-3"]
    assert names(browser.get(f"{LIST}?o=1&p=9")) == ["n-4"]
    assert names(browser.get(f"{LIST}?o=1&p=x")) == ["n-0", "n-1"]
    assert len(names(browser.get(f"{LIST}?all="))) == 5
    page = browser.get(f"{LIST}?o=1&p=2").content.decode()
    assert "5 held locks" in page
    assert "p=3" in page


def test_a_query_string_that_makes_no_sense() -> None:
    """It leads back to the whole list, as elsewhere in Django's admin."""
    client = root()
    for query in ("foo=1", "name=x", "e=1&p=1"):
        response = client.get(f"{LIST}?{query}", follow=True)
        assert response.status_code == 200
        assert names(response) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (86399, "23 h 59 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# The part that changes, for the script.


def test_the_live_part(name: str) -> None:
    """The script gets the content of the list only, under the address of the page."""
    lock(name, timeout=60).acquire()
    client = root()
    for path in (f"{LIST}?o=1&q={name[:8]}", page_of(name)):
        whole, part = client.get(path), client.get(path, headers={LIVE_HEADER: "live"})
        assert part.status_code == 200
        assert LIVE_HEADER in part["Vary"]
        assert "<html" in whole.content.decode()
        text = part.content.decode()
        assert "<html" not in text
        assert name in text


def test_the_live_part_leaves_messages_to_the_page(name: str) -> None:
    """A message is shown to a reader, and not lost in a refresh."""
    client = root()
    client.get(f"{LIST}nonsense/change/")
    client.get(LIST, headers={LIVE_HEADER: "live"})
    assert len(told(client.get(LIST))) == 1


# The page of a lock.


def test_the_page_of_a_lock(client: redis.Redis) -> None:
    """It shows all that is known: the holder, the waiters with their times, and the audit."""
    lock("import:7", timeout=60).acquire()
    locks["default"].force_release("import:7", by="grace", reason="stuck since noon")
    hold_as(client, "import:7", metadata={"request": "8b1f"}, thread="Thread-9", task_id="77")
    waiting = Background(lambda: lock("import:7", timeout=60, blocking_timeout=60).acquire())
    eventually(lambda: waiters("import:7") == 1)
    response = root().get(page_of("import:7"))
    page = response.content.decode()
    holder = locks["default"].holder("import:7")
    assert holder is not None
    for text in ("request", "8b1f", "Thread-9", "77", holder.token_id, str(holder.fence)):
        assert text in page
    (shown,) = response.context["waiting"]
    (waiter,) = locks["default"].waiting("import:7")
    assert waiter.thread is not None
    assert f"{waiter.host}:{waiter.pid}" in shown["who"]
    assert waiter.thread in shown["who"]
    assert shown["who"] in page
    assert shown["since"] in page
    (entry,) = response.context["entries"]
    assert entry["by"] == "grace"
    for text in ("Released by force", "grace", "stuck since noon"):
        assert text in page
    locks["default"].force_release("import:7")
    assert waiting.outcome()


def test_the_page_of_a_free_lock(name: str) -> None:
    """A link to a lock that is not held any more still opens a page."""
    page = root().get(page_of(name)).content.decode()
    assert "Nobody holds this lock." in page
    assert "Release…" not in page


@pytest.mark.parametrize("key", ["nonsense", "nope:a", "default:", "default:a\x07b", ":a"])
def test_the_page_of_what_is_no_lock(key: str) -> None:
    client = root()
    path = f"{LIST}{admin.utils.quote(key)}"
    response = client.get(f"{path}/change/", follow=True)
    assert response.redirect_chain == [(LIST, 302)]
    ((level, text),) = told(response)
    assert level == "warning"
    assert "is no lock of a backend in LOCKS" in text
    assert client.get(f"{path}/history/").status_code == 302


def test_an_open_page_of_what_is_no_lock_any_more(settings: Any) -> None:
    """The script polls; it must not queue messages or renew the session."""
    settings.SESSION_SAVE_EVERY_REQUEST = True
    client = root()
    response = client.get(page_of("a", using="gone"), headers={LIVE_HEADER: "live"})
    assert response.status_code == 404
    assert LIVE_HEADER in response["Vary"]
    assert not response.cookies
    assert told(client.get(LIST)) == []


def test_the_admins_log_leads_to_the_page(name: str) -> None:
    """The links of ``LogEntry`` on the front page and in the history open."""
    client = root()
    awkward = f"{name}/a_b:c?d#é%2F"
    lock(awkward, timeout=60).acquire()
    entry = LogEntry.objects.create(
        user_id=client.session["_auth_user_id"],
        content_type=ContentType.objects.get_for_model(HeldLock),
        object_id=HeldLock.of("default", awkward).pk,
        object_repr=awkward,
        action_flag=CHANGE,
        change_message="Released by hand.",
    )
    front = client.get("/admin/").content.decode()
    assert entry.get_admin_url() in front
    page = client.get(entry.get_admin_url())
    assert page.context["row"].holder.name == awkward
    history = client.get(page_of(awkward, view="history")).content.decode()
    assert "Released by hand." in history


def test_no_address_asks_for_the_table(name: str) -> None:
    """No stock page queries the database for a lock or changes anything."""
    lock(name, timeout=60).acquire()
    before = ticket(name)
    client = root()
    autocomplete = "/admin/autocomplete/?app_label=django_redis_lock&model_name=heldlock"
    expected = {
        LIST: 200,
        f"{LIST}?{'action=release_locks&_selected_action=' + before}": 302,
        f"{LIST}add/": 403,
        page_of(name): 200,
        page_of(name).removesuffix("change/"): 302,
        page_of(name, view="history"): 200,
        page_of(name, view="delete"): 403,
        RELEASE: 302,
        f"{RELEASE}?confirmed=yes&_selected_action={before}": 302,
        f"{autocomplete}&field_name=key": 403,
        "/admin/django_redis_lock/": 200,
    }
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert {path: client.get(path).status_code for path in expected} == expected
        for path in (f"{LIST}add/", page_of(name, view="delete")):
            assert client.post(path, {"post": "yes"}).status_code == 403
        assert client.post(page_of(name), {"name": "x"}).status_code == 405
    assert [query for query in queries if HeldLock._meta.db_table in query["sql"]] == []
    assert ticket(name) == before
    assert locks["default"].history() == []
