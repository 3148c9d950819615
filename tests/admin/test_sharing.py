"""Semaphores and readers in the admin: each hold by itself, and the limit that operators set."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from django.contrib.admin.models import LogEntry

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.models import HeldLock
from tests.tools import let_go, permits, queue
from tests.tools.admin import LIST, MAY_RELEASE, RELEASE, VIEW, names, page_of, root, staff, told
from tests.tools.admin import release as confirm

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
LIMIT = f"{LIST}limit/"


def boxes(name: str) -> list[str]:
    holders = locks["default"].holders_of([name])
    return [HeldLock.of("default", name, holder.token_id).hold for holder in holders]


def set_limit(client: Any, name: str, **fields: Any) -> Any:
    return client.post(LIMIT, {"lock": HeldLock.of("default", name).pk, **fields}, follow=True)


def test_each_who_shares_a_lock_is_shown_and_who_waits_with_its_mode() -> None:
    permits("render", 1, limit=2)
    assert lock("read", timeout=60, shared=True).acquire()
    permits("render", 1, limit=2)
    locks["default"].set_limit("render", 2, by="ada")
    waiting = queue(semaphore("render", 2, timeout=60), lock("render", timeout=60))
    visitor = root()
    assert names(visitor.get(LIST)) == ["render", "render", "read"]  # together
    page = visitor.get(f"{LIST}?o=1")
    assert names(page) == ["read", "render", "render"]
    text = page.content.decode()
    assert text.count("<bdi>2 of 2</bdi>") == 1
    assert [row.follows for row in page.context["cl"].result_list] == [False, False, True]
    assert ('data-label="Waiters">&nbsp;' in text, "<bdi>3 holders</bdi>" in text) == (True, True)
    assert text.count("<bdi>1 holder</bdi>") == 1
    assert "<bdi>2 waiting</bdi>" in text
    assert "2 held locks" in text
    assert all(f'value="{box}"' in text for box in boxes("render"))
    page = visitor.get(page_of("render"))
    text = page.content.decode()
    assert "This lock is free." not in text
    assert "<bdi>2 of 2</bdi>" in text
    assert "set by ada, " in text
    assert [waiter["sharing"] for waiter in page.context["waiting"]] == ["one of 2", ""]
    assert text.count('data-label="Shared"><bdi>one of 2<') == 1
    for box, holder in zip(boxes("render"), locks["default"].holders_of(["render"]), strict=True):
        assert f'name="_selected_action" value="{box}"' in text
        assert f'data-label="Fence">{holder.fence}<' in text
    let_go("render", waiting)


def test_a_released_permit_is_the_one_that_was_chosen() -> None:
    taken = permits("render", 3)
    client = root()
    first = boxes("render")[0]
    page = client.post(RELEASE, {"_selected_action": first, "from_lock": "yes"})
    assert [row["hold"] for row in page.context["held"]] == [first]
    ((level, _),) = told(confirm(client, first))
    assert level == "success"
    assert [permit.owned() for permit in taken] == [False, True, True]
    ((level, text),) = told(confirm(client, first))
    assert (level, text) == (
        "warning",
        "Not released: the hold of “render” that was shown has already ended.",
    )
    data = {"_selected_action": [*boxes("render"), first, "0" * 16 + first[16:]]}
    page = client.post(RELEASE, data)
    assert page.context["changed"] == ["render"]
    text = page.content.decode()
    assert 'value="Release 2 holds"' in text
    assert "Force the release of 2 holds?" in text
    confirm(client, *boxes("render"))
    assert locks["default"].holder("render") is None


# The limit.


def test_the_list_tells_of_limits_that_no_row_shows(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks["default"].set_limit("idle", 3, by="ada")
    locks["default"].set_limit("render", 0, by="ada")
    permits("used", 2, limit=3)
    locks["default"].set_limit("used", 1)
    (waiting,) = queue(semaphore("render", 1, timeout=60))
    client = root()
    page = client.get(LIST)
    shown = [(one["limit"], one["by"], one["waiters"]) for one in page.context["cl"].unheld]
    assert shown == [(0, "ada", "1"), (3, "ada", "0")]
    text = page.content.decode()
    assert text.count(">paused<") == 1
    assert f'<a href="{page_of("render")}"><bdi>render</bdi></a>' in text
    assert "<bdi>1 waiting</bdi>" in text
    assert '<td data-label="Alias"><bdi>default</bdi></td>' in text
    assert "without a holder" not in client.get(f"{LIST}?using=locmem").content.decode()
    assert "without a holder" not in client.get(f"{LIST}?q=used").content.decode()
    (idle,) = client.get(f"{LIST}?q=idl").context["cl"].unheld
    assert idle["key"] == HeldLock.of("default", "idle").pk
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    text = client.get(LIST).content.decode()
    assert "without a holder" in text
    assert 'data-label="Alias"' not in text
    locks["default"].set_limit("used", 0)
    page = client.get(page_of("used")).content.decode()
    assert ("2 of 0" in page, "<bdi>2 held, paused</bdi>" in page) == (False, True)
    text = client.get(LIST).content.decode()
    assert (text.count(">paused<"), text.count("<bdi>2 held, paused</bdi>")) == (2, 1)
    assert ("1 held lock" in text, "<bdi>1 waiting</bdi>" in text) == (True, True)
    refusal = LockUnavailable("redis://ada:secret@h refused: <no permission>")
    with monkeypatch.context() as patch:
        patch.setattr(type(locks["default"]), "limits", MagicMock(side_effect=refusal))
        page = client.get(LIST)
    assert names(page) == ["used", "used"]
    told = "“default” can&#x27;t list limits and queues without a holder: "
    assert f"{told}redis://***@h refused: &lt;no permission&gt;" in page.content.decode()
    locks["default"].set_limit("render", None)
    assert waiting.outcome()


def test_a_limit_is_set_and_cleared_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    client = staff(VIEW, MAY_RELEASE)
    permits("render", 1, limit=1)
    (waiting,) = queue(semaphore("render", 1, timeout=60))
    page = set_limit(client, "render", limit="2")
    assert page.redirect_chain == [(page_of("render"), 302)]
    assert told(page) == [("success", "The limit is now 2.")]
    assert 'name="clear"' in page.content.decode()
    assert waiting.outcome()
    (limit,) = locks["default"].limits()
    assert (limit.limit, limit.by) == (2, "staff-view_heldlock-release_heldlock")
    assert LogEntry.objects.get().change_message == "Limit set to 2."
    silence = LockUnavailable("redis://ada:secret@h is not available", name="render")
    with monkeypatch.context() as patch:
        patch.setattr(type(locks["default"]), "set_limit", MagicMock(side_effect=silence))
        ((level, text),) = told(set_limit(client, "render", limit="1"))
    assert (level, "secret" in text) == ("error", False)
    page = set_limit(client, "render", limit="", clear="x")
    assert told(page) == [("success", "The limit was cleared.")]
    assert 'name="clear"' not in page.content.decode()
    assert locks["default"].limits() == []


def test_pages_of_one_permit_of_one_reader_and_of_nobody(settings: Any) -> None:
    """Those of a semaphore, and of a free name, have the form of its limit, for who may release."""
    locks["default"].set_limit("paused", 0, by="ada")
    assert lock("read", timeout=60, shared=True).acquire()
    assert lock("render", timeout=60, shared=True).acquire()
    (permit,) = permits("render", 1)
    client, viewer = staff(VIEW, MAY_RELEASE), staff(VIEW)
    shown = ("paused", "render", "read", "other")
    texts = {name: client.get(page_of(name)).content.decode() for name in shown}
    assert [f'action="{LIMIT}"' in text for text in texts.values()] == [True, True, False, True]
    assert all(f'_selected_action" value="{box}"' in texts["render"] for box in boxes("render"))
    assert str(permit.fence) in texts["render"]
    assert "This lock is free." not in texts["paused"]
    locks["default"].set_limit("read", 0)
    assert client.get(LIST).content.decode().count('lock-wrong">paused<') == 1  # not "read"
    locks["default"].set_limit("read", None)
    assert "None: semaphores of this name are paused." in texts["paused"]
    assert "set by ada, " in texts["paused"]
    assert "<bdi>1 holder</bdi>" in texts["read"]
    assert f'action="{LIMIT}"' not in viewer.get(page_of("paused")).content.decode()
    assert "Limit" not in viewer.get(page_of("other")).content.decode()
    assert set_limit(viewer, "render", limit="1").status_code == 403
    assert [limit.name for limit in locks["default"].limits()] == ["paused"]
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "BACKEND": GETSET}}
    assert "Limit" not in client.get(page_of("other")).content.decode()


@pytest.mark.parametrize("fields", [{}, {"limit": "x"}, {"limit": "-1"}, {"limit": "9" * 9000}])
def test_a_limit_that_is_none(fields: dict[str, str]) -> None:
    assert set_limit(root(), "render", **fields).status_code == 400
    assert locks["default"].limits() == []
