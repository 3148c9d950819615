"""What the page of a lock says of who holds it: its life, its last renewal, links from its task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from django_redis_lock import locks
from django_redis_lock.admin.live import HEADER as LIVE_HEADER
from django_redis_lock.admin.owner import liveness, task_links
from django_redis_lock.protocol.records import read_holder
from tests.tools import Child
from tests.tools.admin import hold_as, page_of, root

pytestmark = pytest.mark.usefixtures("no_workers")

NOW_MS = 1_700_000_000_000


def held(ttl: float | None, *, held_for: float = 100, **record: Any) -> Any:
    value = f"token {(NOW_MS - int(held_for * 1000)) * 1000} {json.dumps(record)}"
    ttl_ms = -1 if ttl is None else int(ttl * 1000)
    named = {"name": "n", "using": "default", "waiters": 0, "now_ms": NOW_MS}
    return read_holder(value.encode(), ttl_ms=ttl_ms, **named)


@pytest.mark.parametrize(
    ("holder", "seconds_ago"),
    [
        (held(25, auto_renew=True, lease=30_000), 5),
        (held(25, auto_renew=True, lease=60_000), 35),
        (held(25, auto_renew=True), None),  # an older version's, of any TIMEOUT
        (held(25, auto_renew=True, lease=30_000, max_hold=200_000), 5),
        (held(25, auto_renew=True, lease=30_000, max_hold=125_000), None),  # to less than a lease
        (held(45, auto_renew=True, lease=30_000), None),  # its holder has extended it
        (held(25), None),
        (held(None), None),
        (held(28, held_for=2, auto_renew=True, lease=30_000), None),  # not yet
    ],
)
def test_when_a_lease_was_renewed_last(holder: Any, seconds_ago: float | None) -> None:
    """It is computed from the lease's end and length, if these are known."""
    told = liveness(holder)["renewed_at"]
    if seconds_ago is None:
        assert told is None
    else:
        second = (NOW_MS // 1000 - seconds_ago) % 60
        assert f":{second:02}" in str(told)


def test_links_from_a_task(settings: Any) -> None:
    """A task id is quoted, whatever it contains; a lock without a task has no links."""
    settings.LOCKS = {
        "default": {
            **settings.LOCKS["default"],
            "OPERATORS": {"TASK_LINKS": {"Logs": "/logs?task={task_id}&x=1"}},
        }
    }
    assert task_links(held(9, task_id='a/"b"&c=<d>')) == [
        ("Logs", "/logs?task=a%2F%22b%22%26c%3D%3Cd%3E&x=1")
    ]
    assert task_links(held(9)) == []
    assert locks["default"].operators.task_links


@pytest.mark.django_db
@pytest.mark.usefixtures("server")
def test_stopped_process_is_not_alive(name: str, settings: Any, tmp_path: Path) -> None:
    """The page of its lock says that it is stopped, and why in the user's language."""
    messages = Catalog(locale="de")
    messages.add("process %(pid)s is stopped", "Prozess %(pid)s ist angehalten")
    (folder := tmp_path / "de" / "LC_MESSAGES").mkdir(parents=True)
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, messages)
    settings.LOCALE_PATHS = [tmp_path]
    program = f"lock({name!r}, 60).acquire(); say('held'); hear()"
    with Child(program) as child:
        assert child.hear() == "held"
        child.stop()
        browser = root(headers={"accept-language": "de"})
        page = browser.get(page_of(name))
        assert page.context["liveness"]["life"] == "stopped"
        assert f"Prozess {child.pid} ist angehalten" in page.content.decode()
        child.go_on()
        assert browser.get(page_of(name)).context["liveness"]["life"] == "alive"


@pytest.mark.django_db
@pytest.mark.usefixtures("server")
def test_the_script_does_not_ask_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the holder is alive is told when the page is opened, not at each refresh."""
    asked: list[Any] = []
    monkeypatch.setattr(
        "django_redis_lock.admin.options.liveness",
        lambda *words: asked.append(words) or {"life": "dead"},
    )
    hold_as(client, "a", task_id="1")
    browser = root()
    assert browser.get(page_of("a")).context["liveness"] == {"life": "dead"}
    assert "liveness" not in browser.get(page_of("a"), headers={LIVE_HEADER: "live"}).context
    assert len(asked) == 1
