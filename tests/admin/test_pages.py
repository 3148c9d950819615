"""What the admin's pages say, and what they leave unsaid because it is not known."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
from django.contrib import admin
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_redis_lock import lock, locks
from django_redis_lock.admin import HEADER
from django_redis_lock.celery.options import Guard
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.models import HeldLock
from tests.settings import REDIS, server_url
from tests.tools import enqueue, eventually, let_go, queue
from tests.tools.admin import LIST, hold_as, page_of, root, staff, told
from tests.tools.parking import parking

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


@pytest.mark.parametrize("name", ["two words", "it's", "$(touch x)", "-rf"])
def test_the_command_releases_the_hold(name: str, settings: Any) -> None:
    """A shell reads it as it is meant. It has room for a reason that is needed."""
    entry = {"BACKEND": REDIS, "LOCATION": server_url(), "OPERATORS": {"REASON_REQUIRED": True}}
    settings.LOCKS = {"default": entry, "other": {**entry, "KEY_PREFIX": "other"}}
    lock(name, timeout=60).acquire()
    command = root().get(page_of(name)).context["command"]
    assert command[:3] == ["python", "manage.py", "locks"]
    assert "--using default" in " ".join(command)
    text = " ".join(command).replace("''", "'it hangs'")
    _, _, *words = shlex.split(text)
    call_command(words[0], words[1], "--noinput", *words[2:])
    assert locks["default"].holder(name) is None


def test_what_is_not_known_is_said_to_be(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_as(client, "a")
    visitor = root()
    for view in ("change", "history"):
        assert "has no entries" in visitor.get(page_of("a", view=view)).content.decode()
    denied = MagicMock(side_effect=LockUnavailable("this user may not run LRANGE", name="a"))
    for method in ("waiting", "history"):
        monkeypatch.setattr(type(locks["default"]), method, denied)
    page = visitor.get(page_of("a")).content.decode()
    assert page.count("Not known: this user may not run LRANGE") == 2
    assert "has no entries" not in page
    assert locks["default"].holder("a").token_id in page  # type: ignore[union-attr]
    history = visitor.get(page_of("a", view="history")).content.decode()
    assert "Not known: this user may not run LRANGE" in history


def test_the_page_of_a_lock(client: redis.Redis, settings: Any) -> None:
    operators = {"TASK_LINKS": {"Logs": "/logs?task={task_id}&x=1"}}
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "OPERATORS": operators}}
    settings.TIME_ZONE = "Asia/Tokyo"
    lock("import:7", timeout=60).acquire()
    locks["default"].force_release("import:7", by="grace", reason="stuck since noon")
    hold_as(client, "import:7", metadata={"request": "8b1f"}, thread="Thread-9", task_id='7"&')
    (waiting,) = queue(lock("import:7", timeout=60))
    response = root().get(page_of("import:7"))
    page = response.content.decode()
    holder = locks["default"].holder("import:7")
    assert holder is not None
    for text in ("request", "8b1f", "Thread-9", holder.token_id, str(holder.fence)):
        assert text in page
    assert 'href="/logs?task=7%22%26&amp;x=1"' in page
    acquired = holder.acquired_at
    assert acquired is not None
    assert f'datetime="{acquired:%Y-%m-%dT%H:%M:%S+00:00}"' in page
    assert f'title="{acquired:%Y-%m-%d %H:%M:%S} UTC"' in page
    assert f"<span>{acquired + timedelta(hours=9):%H:%M:%S} JST</span>" in page
    (shown,) = response.context["waiting"]
    (waiter,) = locks["default"].waiting("import:7")
    assert waiter.thread is not None
    assert f"{waiter.host}:{waiter.pid}" in shown["who"]
    assert waiter.thread in shown["who"]
    assert shown["who"] in page
    assert shown["since"] in page
    assert ('data-label="Lease"' in page, "Shared" in page) == (True, False)
    (entry,) = response.context["entries"]
    assert entry["by"] == "grace"
    for text in ("Released by force", "grace", "stuck since noon"):
        assert text in page
    locks["default"].force_release("import:7")
    assert waiting.outcome()


@pytest.mark.parametrize("key", ["nonsense", "nope:a", "default:", "default:a\x07b", ":a"])
def test_the_page_of_what_is_no_lock(key: str) -> None:
    client = root()
    path = f"{LIST}{admin.utils.quote(key)}"
    response = client.get(f"{path}/change/", follow=True)
    assert response.redirect_chain == [(LIST, 302)]
    ((level, text),) = told(response)
    assert level == "warning"
    assert "is not a lock of an alias in LOCKS" in text
    # The script polls; it must not queue messages.
    assert client.get(f"{path}/change/", headers={HEADER: "live"}).status_code == 404
    assert told(client.get(LIST)) == []
    assert client.get(f"{path}/history/").status_code == 302


def test_the_audit_of_all_locks_and_of_one(client: redis.Redis) -> None:
    browser = root()
    audit = f"{LIST}audit/"
    assert "The audit has no entries." in browser.get(audit).content.decode()
    for name, using in (("a", "default"), ("b/c", "url"), ("d", "default")):
        began = client.time()
        eventually(lambda began=began: client.time()[1] // 1000 != began[1] // 1000)
        lock(name, timeout=60, using=using).acquire()
        locks[using].force_release(name, by="grace", reason=f"why {name}")
    page = browser.get(audit)
    assert [entry["reason"] for entry in page.context["entries"]] == ["why d", "why b/c", "why a"]
    assert f'href="{page_of("b/c", "url")}"' in page.content.decode()
    assert f'href="{audit}"' in browser.get(LIST).content.decode()
    page = browser.get(page_of("a", view="history"))
    assert [entry["reason"] for entry in page.context["entries"]] == ["why a"]
    text = page.content.decode()
    for part in ("Released by force", "grace", "why a", "held_locks.css"):
        assert part in text
    # Of releases by the command, the admin's log knows nothing.
    assert ("change history. It" in text, "Date/time" in text) == (False, False)
    assert staff().get(page_of("a", view="history")).status_code == 403


def test_no_page_asks_for_the_table(name: str) -> None:
    lock(name, timeout=60).acquire()
    client = root()
    with CaptureQueriesContext(connection) as queries:
        for view in ("change", "history", "delete"):
            client.get(page_of(name, view=view))
        client.get(LIST)
        client.get(
            "/admin/autocomplete/?app_label=django_redis_lock&model_name=heldlock&field_name=key"
        )
        client.post(f"{LIST}add/", {"post": "yes"})
    assert [query for query in queries if HeldLock._meta.db_table in query["sql"]] == []


def test_very_many_waiters(client: redis.Redis) -> None:
    hold_as(client, "busy")
    enqueue(client, "busy", *['{"host":"far","pid":1}'] * 1000)
    page = root().get(page_of("busy"))
    assert (len(page.context["waiting"]), "and 900 more" in page.content.decode()) == (100, True)


def test_parked_tasks_are_shown_in_order_with_their_turns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(["a%1B", "", *map(str, range(70))])
    monkeypatch.setattr(Guard, "turn", lambda *_: f"={next(turns)}")
    with parking(name) as parked:
        ids = parked.park(72)
        waiting = queue(lock(name, timeout=60))
        text = root(headers={"accept-language": "de"}).get(page_of(name)).content.decode()
        locks["default"].force_release(name)
        let_go(name, waiting)
    rows = text.partition('id="lock-waiting"')[2].split('<tr><th scope="row">')[1:]
    for row, task_id in zip(rows, ids, strict=False):
        assert f'title="{task_id}"' in row
        assert '<span class="lock-aside">geparkt</span>' in row
        assert row.count('"><bdi>') == 2  # durations keep their order from right to left
    assert [len(rows), "geparkt" in rows[72]] == [73 + 64, False]
    cells = [row.partition("</tr>")[0] for row in rows[73:75]]
    assert [cell.split("</th>")[0] for cell in cells] == [r"<bdi>a\x1b</bdi>", "<bdi>-</bdi>"]
    assert '">1<' in cells[0]
    assert "und 8 weitere" in rows[-1]
