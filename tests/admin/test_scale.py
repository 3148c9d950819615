"""The admin's list of very many locks: what is read for it, what can't be had, who shares it."""

from __future__ import annotations

import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from django.contrib import admin

from django_redis_lock import lock, locks
from django_redis_lock.admin import live, snapshots
from django_redis_lock.admin.live import HEADER as LIVE_HEADER
from django_redis_lock.admin.names import Names
from django_redis_lock.admin.snapshots import Snapshot, Snapshots
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.models import HeldLock
from example_project.embedded import EmbeddedServer
from tests.settings import REDIS
from tests.tools import Background, counted, eventually
from tests.tools.admin import LIST, hold_as, names, release, root, staff, ticket

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What another test's page has read is not this one's, which has time for its own pages."""
    monkeypatch.setattr(snapshots, "LEAST", snapshots.MOST)
    snapshots.snapshots.forget()
    yield
    snapshots.snapshots.forget()


LEASES = {"d": 40, "a": 50, "c": None, "b": 20, "e": 30}
"""Seconds of some locks, by their names."""


@pytest.fixture
def many(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_lock.admin.names.PAGE", 2)
    monkeypatch.setattr("django_redis_lock.admin.names.PART", 2)
    monkeypatch.setattr("django_redis_lock.admin.names.SAMPLES", 1)
    model_admin = admin.site.get_model_admin(HeldLock)
    monkeypatch.setattr(model_admin, "most_records", 3)
    monkeypatch.setattr(model_admin, "list_per_page", 2)
    monkeypatch.setattr(snapshots, "FEW", 3)
    for number, (name, ttl) in enumerate(LEASES.items()):
        task = {"task_id": str(number), "task_name": f"t.{name}"} if number % 2 else {}
        hold_as(client, f"x-{name}", ttl=ttl, held_for=number, **task)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("query", "total", "shown"),
    [
        ("", 5, "ca"),  # the latest lease end first, for who held longest is not known
        ("p=2", 5, "de"),
        ("p=9", 5, "b"),
        ("o=4", 5, "be"),
        ("o=-4", 5, "ca"),
        ("o=1", 5, "ab"),
        ("o=-1", 5, "ed"),
        ("o=-1&p=2", 5, "cb"),
        ("o=7", 5, "ab"),
        ("o=3.1", 5, "ab"),
        ("o=3", 5, "ca"),
        ("o=99.x", 5, "ca"),
        ("q=X-", 5, "ca"),
        ("q=x-&o=1", 5, "ab"),
        ("q=far", 0, ""),  # the host of all of them: not searched, and the page says so
        ("q=x+-d", 1, "d"),
        ("using=default", 5, "ca"),
        ("using=url", 0, ""),
        ("task=*", 0, ""),
        ("waiting=no&q=x", 0, ""),
        ("task=*&q=-a", 1, "a"),
        ("all=", 5, "cadeb"),
    ],
)
def test_what_can_be_had_of_locks_that_are_not_read(query: str, total: int, shown: str) -> None:
    """Names and leases sort, names can be searched, and no answer is silently wrong."""
    page = root().get(f"{LIST}?{query}")
    assert [name.removeprefix("x-") for name in names(page)] == list(shown)
    change_list, text = page.context["cl"], page.content.decode()
    assert (change_list.result_count, change_list.full_result_count) == (total, 5)
    refused = query in ("task=*", "waiting=no&q=x")
    assert change_list.reading.refused == refused
    assert ("can't tell which to show" in text) == refused
    assert ("only names are searched" in text) == (total == 5)
    assert ("names alone were searched" in text) == ("q=" in query and not refused and total < 5)


def test_very_many_names_are_sorted_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sorted in parts; among equal names the alias decides."""
    monkeypatch.setattr("django_redis_lock.admin.names.PART", 2000)
    size = 10_000
    found = [f"{number * 7919 % size:06d}" for number in range(size)]
    names = Names([("b", found), ("a", found[:100])])
    tracemalloc.start()
    numbers = names.by_name()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    keys = [(name, using) for using, name in names.keys(numbers)]
    assert keys == sorted([(one, "b") for one in found] + [(one, "a") for one in found[:100]])
    assert peak < 80 * size
    assert list(names.without({"b"})) == found[:100]
    assert names.without({"a"}).keys([0, size - 1]) == [("b", found[0]), ("b", found[-1])]


@pytest.mark.usefixtures("many")
def test_only_the_locks_of_the_page_are_read(client: redis.Redis) -> None:
    """The index is read once for the following pages, and a lock when it is shown."""
    browser = root()
    with counted(client) as commands:
        browser.get(LIST)
    asked = 2  # aliases of this server, each whether it still answers
    assert (commands["zrangebyscore"], commands["get"]) == (2, asked + 2)
    with counted(client) as commands:
        page = browser.get(f"{LIST}?p=2", headers={LIVE_HEADER: "live"})
    assert "zrangebyscore" not in commands
    assert commands["get"] == asked + 2
    assert page.context["cl"].reading.age > 0


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("query", ["", "o=1", "q=-a"])
def test_a_page_that_was_sent_keeps_no_snapshot_in_memory(query: str) -> None:
    """Its context is Django's, which lives until the garbage collector runs."""
    page = root().get(f"{LIST}?{query}")
    shared = snapshots.snapshots
    snapshot = weakref.ref(shared.latest(1))
    names, rows = weakref.ref(shared.latest(1).names), page.context["cl"].result_list
    shared.forget()
    assert rows
    assert snapshot() is None
    assert names() is None


@pytest.mark.usefixtures("many")
def test_more_can_be_had_where_a_search_leaves_few() -> None:
    """Then they are read, sorted and filtered as in a short list."""
    page = root().get(f"{LIST}?q=x&o=3")
    assert page.context["cl"].sortable_by == ("lock", "lease_left", "backend")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(admin.site.get_model_admin(HeldLock), "most_records", 4)
        page = staff("view_heldlock").get(f"{LIST}?q=-&o=-2&p=1")
        assert page.context["cl"].reading.unread == 5
        page = staff("view_heldlock", "release_heldlock").get(f"{LIST}?q=x-a&o=-2&task=t.a")
        assert names(page) == ["x-a"]


@pytest.mark.usefixtures("many")
def test_a_release_is_seen_at_once_by_who_made_it(client: redis.Redis) -> None:
    """The user's next page is read anew, and what is shown is never older than the page."""
    browser = root()
    assert names(browser.get(LIST)) == ["x-c", "x-a"]
    client.delete("lock:x-a")  # by another process, and still in the index
    assert names(browser.get(LIST)) == ["x-c"]
    page = release(browser, ticket("x-c"))
    assert page.context["cl"].full_result_count == 4
    assert "x-c" not in names(page)


def test_a_list_that_is_read_whole_is_shared_too(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order is that of the snapshot; the values of each lock are current."""
    monkeypatch.setattr(snapshots, "FEW", 2)
    for number in range(3):
        hold_as(client, f"n-{number}", held_for=10 - number)
    browser = root()
    assert names(browser.get(LIST)) == ["n-0", "n-1", "n-2"]
    hold_as(client, "n-3", held_for=20)
    client.delete("lock:n-1")
    with counted(client) as commands:
        page = browser.get(LIST)
    assert names(page) == ["n-0", "n-2"]
    asked = 2  # aliases of this server, each whether it still answers
    assert (commands.get("zrangebyscore", 0), commands["get"]) == (0, asked + 3)
    snapshots.snapshots.forget()
    assert names(browser.get(LIST)) == ["n-3", "n-0", "n-2"]


NOT_KNOWN = "How many locks are held is not known."


@pytest.mark.parametrize(
    ("near", "most_records", "total", "total_of_others"),
    [
        (["near"], 100, "1 held lock and", "0 of 1 held lock and"),
        (["near"], 3, "1 held lock and", "0 of 1 held lock and"),
        ([], 2, NOT_KNOWN, NOT_KNOWN),
    ],
)
def test_a_server_that_falls_silent_meanwhile(
    own_server: EmbeddedServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    near: list[str],
    most_records: int,
    total: str,
    total_of_others: str,
) -> None:
    """Its locks are not counted any more, whether or not they would be on the page."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    monkeypatch.setattr(snapshots, "FEW", 1)
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "most_records", most_records)
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "list_per_page", 2)
    settings.LOCKS = {**settings.LOCKS, "far": {"BACKEND": REDIS, "LOCATION": own_server.url()}}
    for name in near:
        assert lock(name, timeout=50).acquire()
    for number in range(3):
        assert lock(f"far-{number}", timeout=60, using="far").acquire()
    browser = root()
    browser.get(LIST)
    own_server.kill()
    for query in ("", "p=2", "q=near", "q=far-", "q=none", "using=far"):
        page = browser.get(f"{LIST}?{query}")
        shown = near if query in ("", "p=2", "q=near") else []
        assert names(page) == shown
        assert [one.using for one in page.context["cl"].reading.problems] == ["far"]
        text = " ".join(page.content.decode().split())
        assert f"<bdi> {total if shown else total_of_others} " in text
        for said in ("None of the held locks matches", "too many to read each"):
            assert said not in text


def test_who_shares_a_snapshot_shares_no_boxes(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users who come during a read share the snapshot, but not each other's permissions."""
    hold_as(client, "a")
    shared = snapshots.take(9)
    monkeypatch.setattr(snapshots.snapshots, "latest", lambda most_records: shared)
    pages = [browser.get(LIST) for browser in (root(), staff("view_heldlock"))]
    allowed = [[row.may_release for row in page.context["cl"].result_list] for page in pages]
    assert allowed == [[True], [False]]


def test_a_silence_is_not_told_for_longer_than_it_lasts(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the timeout was, a page one second later asks again."""
    for setting, value in {"FEW": 0, "KEPT_FOR": 1e9, "LEAST": 1.0}.items():
        monkeypatch.setattr(snapshots, setting, value)
    hold_as(client, "a")
    assert snapshots.take(9).kept_until - monotonic() > 20
    monkeypatch.setattr(locks["url"], "read_index", Mock(side_effect=LockUnavailable("silent")))
    snapshot = snapshots.take(9)
    assert (snapshot.total, [problem.using for problem in snapshot.problems]) == (1, ["url"])
    assert snapshot.kept_until - monotonic() <= 1


def test_one_thread_reads_and_the_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that began before a release is not given to a request that came after it."""
    begun: list[Snapshot] = []
    go_on = [threading.Event(), threading.Event()]

    def take(most_records: int) -> Snapshot:
        begun.append(Snapshot(kept_until=float("inf")))
        mine = begun[-1]
        assert go_on[len(begun) - 1].wait(20)
        return mine

    monkeypatch.setattr(snapshots, "take", take)
    shared = Snapshots()
    first = Background(lambda: shared.latest(1))
    eventually(lambda: begun)
    others = [Background(lambda: shared.latest(1)) for _ in range(3)]
    shared.forget()
    later = Background(lambda: shared.latest(1))
    eventually(lambda: len(begun) == 2)
    go_on[0].set()
    assert first.outcome() is begun[0]
    latest = Background(lambda: shared.latest(1))
    go_on[1].set()
    assert later.outcome() is begun[1]
    assert latest.outcome() is begun[1]
    assert all(one.outcome() in begun for one in others)
    assert len(begun) == 2


def test_a_reading_that_fails_is_tried_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read does not fail the requests that wait for it."""
    failing, good = threading.Event(), Snapshot()
    tries: list[int] = []

    def take(most_records: int) -> Snapshot:
        tries.append(1)
        if len(tries) == 1:
            assert failing.wait(20)
            raise KeyboardInterrupt
        return good

    monkeypatch.setattr(snapshots, "take", take)
    shared = Snapshots()
    first = Background(lambda: shared.latest(1))
    eventually(lambda: tries)
    second = Background(lambda: shared.latest(1))
    failing.set()
    with pytest.raises(KeyboardInterrupt):
        first.outcome()
    assert second.outcome() is good


def test_tabs_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more tabs and the slower the answers, the longer the interval, up to a limit."""
    clock = [1000.0]
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    turns = live.Turns()
    pauses = [turns.pause(0.06) for _ in range(20)]
    assert pauses[0] == pytest.approx(2)
    assert pauses[1] == pytest.approx(4)
    assert max(pauses) == live.LONGEST_PAUSE
    clock[0] += 100
    assert turns.pause(0.006) == pytest.approx(0.2)


def test_the_answer_tells_the_script_when_to_come_again(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least the admin's interval; never, if the page does not refresh."""
    browser = root()
    monkeypatch.setattr(live, "turns", live.Turns())
    assert "X-Held-Locks-Every" not in browser.get(LIST)
    assert float(browser.get(LIST, headers={LIVE_HEADER: "live"})["X-Held-Locks-Every"]) >= 3
    monkeypatch.setattr(live, "SHARE", 1e-5)
    monkeypatch.setattr(live, "turns", live.Turns())
    dear = browser.get(LIST, headers={LIVE_HEADER: "live"})["X-Held-Locks-Every"]
    assert float(dear) == live.LONGEST_PAUSE
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", None)
    assert "X-Held-Locks-Every" not in browser.get(LIST, headers={LIVE_HEADER: "live"})


def test_the_page_of_a_lock_with_very_many_waiters(client: redis.Redis) -> None:
    """The first hundred are shown, and the number of the others."""
    hold_as(client, "busy")
    record = '{"host":"far","pid":1,"since":1700000000000}'
    client.rpush("lock-queue:busy", *[f"channel {n:032x} 10000 {record}" for n in range(1000)])
    assert len(locks["default"].waiting("busy", limit=7)) == 7
    assert len(locks["default"].waiting("busy")) == 1000
    with pytest.raises(ValueError, match="limit=0 is no number of waiters"):
        locks["default"].waiting("busy", limit=0)
    page = root().get(f"{LIST}default:busy/change/".replace(":", "_3A"))
    assert len(page.context["waiting"]) == 100
    assert page.context["waiting_more"] == 900
    text = page.content.decode()
    assert "and 900 more" in text
    assert len(text) < 100_000
