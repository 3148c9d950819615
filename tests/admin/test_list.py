"""The list of held locks in the admin."""

from __future__ import annotations

import re

import pytest
import redis
from django.contrib import admin

from django_redis_lock import lock, locks
from django_redis_lock.admin.wording import duration
from django_redis_lock.models import HeldLock
from tests.tools import counted, enqueue, queue
from tests.tools.admin import LIST, hold_as, names, root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


def test_the_list_tells_who_holds_what(client: redis.Redis) -> None:
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
    (waiting,) = queue(lock("import:7"))
    browser = root()
    page = browser.get(LIST)
    (row,) = page.context["cl"].result_list
    columns = admin.site.get_model_admin(HeldLock)
    shown = {name: str(getattr(columns, name)(row)) for name in columns.list_display}
    assert "import:7" in shown["lock"]
    for part in ("shop.<wbr>tasks.<wbr>import_products", "8c1f", "web-1:42"):
        assert part in shown["holder"]
    assert re.search(r">\d\xa0min( |\xa0)\d+\xa0s<", shown["held_for"])
    assert re.search(r">\d+\xa0s<", shown["lease_left"])
    assert "renewal is late" in shown["lease_left"]
    assert ">1<" in shown["waiters"]
    assert "<bdi>1 waiting</bdi>" in page.content.decode()
    assert "1 needs attention" in page.content.decode()
    assert f">{locks['default'].holder('import:7').fence}<" in shown["fence"]  # type: ignore[union-attr]
    assert ">default<" in shown["backend"]
    assert all(text in page.content.decode() for text in shown.values())
    locks["default"].force_release("import:7")
    assert waiting.outcome()
    locks["default"].force_release("import:7")
    assert "No locks are held." in browser.get(LIST).content.decode()


def test_a_lock_of_another_program_and_one_without_end(client: redis.Redis) -> None:
    client.set("lock:foreign", "xyz", px=60_000)
    client.zadd("lock-index", {"foreign": 2_000_000_000_000})
    hold_as(client, "endless", ttl=None)
    page = root().get(f"{LIST}?o=1")
    assert names(page) == ["endless", "foreign"]
    text = page.content.decode()
    assert ("another program" in text, "no expiry" in text) == (True, True)
    columns, foreign = admin.site.get_model_admin(HeldLock), page.context["cl"].result_list[1]
    assert (">-<" in columns.fence(foreign), ">-<" in columns.held_for(foreign)) == (True, True)


@pytest.fixture
def crowd(client: redis.Redis) -> None:
    """Five locks that differ in everything."""
    renewed = {"auto_renew": True, "lease": 30_000}
    hold_as(client, "b-task", held_for=40, ttl=14, **renewed, task_id="1", task_name="t.one")
    hold_as(client, "a-task", held_for=10, ttl=25, **renewed, task_id="2", task_name="t.two")
    hold_as(client, "fixed", held_for=50, ttl=500, host="db-9", metadata={"user": "Ada"})
    hold_as(client, "endless", held_for=30, ttl=None)
    lock("other", timeout=90, using="url").acquire()
    enqueue(client, "fixed", '{"host":"far","pid":1}')


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"b-task", "a-task", "fixed", "endless", "other"}),
        ("using=url", {"other"}),
        ("using=nope", set()),
        ("lease=attention", {"b-task"}),
        ("lease=none", {"endless"}),
        ("lease=nope", set()),
        ("waiting=yes", {"fixed"}),
        ("waiting=no", {"b-task", "a-task", "endless", "other"}),
        ("task=*", {"b-task", "a-task"}),
        ("task=-", {"fixed", "endless", "other"}),
        ("task=t.two", {"a-task"}),
        ("task=gone", set()),
        ("q=TASK", {"b-task", "a-task"}),
        ("q=t.one", {"b-task"}),
        ("q=ada", {"fixed"}),
        ("q=user+db", {"fixed"}),
        ("q=ada+nobody", set()),
        ("q=task&task=t.one", {"b-task"}),
    ],
)
def test_filters_and_search(query: str, expected: set[str]) -> None:
    page = root().get(f"{LIST}?{query}")
    assert set(names(page)) == expected
    text = page.content.decode()
    assert ("No held locks match." in text) is (not expected)
    if query == "task=gone":
        assert all(f'?task={name}">{name}</a>' in text for name in ("t.one", "t.two", "gone"))


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", ["fixed", "b-task", "endless", "a-task", "other"]),
        ("o=1", ["a-task", "b-task", "endless", "fixed", "other"]),
        ("o=3", ["other", "a-task", "endless", "b-task", "fixed"]),
        ("o=4", ["b-task", "a-task", "other", "fixed", "endless"]),
        ("o=-4", ["endless", "fixed", "other", "a-task", "b-task"]),
        ("o=5", ["a-task", "b-task", "endless", "other", "fixed"]),
        ("o=-5.-1", ["fixed", "other", "endless", "b-task", "a-task"]),
        ("o=6", ["fixed", "b-task", "endless", "a-task", "other"]),
        ("o=-7.1", ["other", "a-task", "b-task", "endless", "fixed"]),
        ("o=99.x.1", ["a-task", "b-task", "endless", "fixed", "other"]),
        ("foo=1", ["fixed", "b-task", "endless", "a-task", "other"]),  # back to the whole list
        ("o=1&p=2", ["endless", "fixed"]),
        ("o=1&p=9", ["other"]),  # the last page, since locks go away
        ("o=1&all=", ["a-task", "b-task", "endless", "fixed", "other"]),
    ],
)
def test_sorting_and_paging(
    order: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "p=" in order or "all" in order:
        monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "list_per_page", 2)
    page = root().get(f"{LIST}?{order}", follow=True)
    assert names(page) == expected
    assert "5 held locks" in page.content.decode()


def test_durations() -> None:
    seconds = (-5, 59.9, 60, 3600, 86399, 200_000)
    texts = ["0 s", "59 s", "1 min", "1 h", "23 h 59 min", "2 d 7 h"]
    assert [duration(each) for each in seconds] == texts


# More locks than are read.

LEASES = {"d": 40, "a": 50, "c": None, "b": 20, "e": 30}
"""Seconds of some locks, by their names."""


@pytest.fixture
def many(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "most_records", 3)
    for number, (name, ttl) in enumerate(LEASES.items()):
        task = {"task_id": str(number), "task_name": f"t.{name}"} if number % 2 else {}
        hold_as(client, f"x-{name}", ttl=ttl, held_for=number, **task)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("query", "shown", "unread"),
    [
        ("", "cad", 2),  # the latest lease ends, and of these the longest held first
        ("o=-1", "dca", 2),
        ("q=X-", "cad", 2),
        ("task=*", "a", 2),
        ("q=x+-b", "b", 0),
        ("q=-b&task=*", "b", 0),
        ("q=far", "", 0),  # the host of all of them: only names are searched
        ("using=url", "", 0),
    ],
)
def test_more_locks_than_are_read(query: str, shown: str, unread: int, client: redis.Redis) -> None:
    browser = root()
    with counted(client) as commands:
        page = browser.get(f"{LIST}?{query}")
    assert commands.get("get", 0) <= 3
    assert [name.removeprefix("x-") for name in names(page)] == list(shown)
    change_list, text = page.context["cl"], page.content.decode()
    assert (change_list.full_result_count, change_list.reading.unread) == (5, unread)
    assert f"{len(shown)} of 5 held locks" in text
    assert ("whose leases end last" in text) == bool(unread)
    assert ("Only names were searched" in text) == (not unread)
