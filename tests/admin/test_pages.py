"""What the admin's pages say, and what they leave unsaid because it is not known."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.admin.detail import release_command
from django_redis_lock.admin.wording import breakable
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import LockUnavailable
from tests.settings import REDIS, server_url
from tests.tools.admin import hold_as, page_of, root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server")]


@pytest.mark.parametrize(
    "name",
    [
        "product:42",
        "two words",
        "it's",
        "$(touch x)",
        "-rf",
        "a\\b'\u202e\u200b",
        "名前",
        "*",
        "a\nb",
    ],
)
def test_the_command_is_safe_in_a_shell(name: str, client: redis.Redis) -> None:
    """A shell passes on the name that the lock has, whatever it is."""
    hold_as(client, "a")
    holder = locks["default"].holder("a")
    assert holder is not None
    object.__setattr__(holder, "name", name)
    command = " ".join(release_command(holder))
    assert command.isprintable()
    prefix = "python manage.py locks release "
    assert command.startswith(prefix)
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command.removeprefix(prefix)}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    words = printed.stdout.decode().split("\0")[:-1]
    options = ["--token-id", holder.token_id, "--using", "default"]
    assert words == ([*options, "--", name] if name == "-rf" else [name, *options])


def test_the_command_has_room_for_a_reason_that_is_needed(
    settings: Any, client: redis.Redis
) -> None:
    """The reason has to be filled in: an empty one is refused."""
    entry = {"BACKEND": REDIS, "LOCATION": server_url(), "OPERATORS": {"REASON_REQUIRED": True}}
    settings.LOCKS = {"default": entry}
    hold_as(client, "a")
    holder = locks["default"].holder("a")
    assert holder is not None
    assert release_command(holder)[-2:] == ["--reason", "''"]


def test_one_alias_needs_no_using(settings: Any, client: redis.Redis) -> None:
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": server_url()}}
    hold_as(client, "a")
    assert "--using" not in root().get(page_of("a")).content.decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("product:1/small", "product:1/small"),
        ("shop.tasks.import_products", "shop.<wbr>tasks.<wbr>import_products"),
        ("<b>" * 8, "&lt;b&gt;" * 8),
        ("x" * 32, "x" * 30 + "<wbr>x<wbr>x"),
        ("a" * 20 + ":\u202e", "a" * 20 + ":<wbr>\\u202e"),
    ],
)
def test_where_names_may_be_broken(text: str, shown: str) -> None:
    """Long names break between words only; nothing is lost or left unescaped."""
    assert breakable(text) == shown


def test_what_is_not_known_is_said_to_be(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue or audit that can't be read says nothing of waiters or releases."""

    def denied(*args: Any, **options: Any) -> None:
        raise LockUnavailable("this user may not run LRANGE", name="a")

    hold_as(client, "a")
    visitor = root()
    assert "no forced release" in visitor.get(page_of("a")).content.decode()
    backend = type(locks["default"])
    monkeypatch.setattr(backend, "waiting", denied)
    monkeypatch.setattr(backend, "history", denied)
    page = visitor.get(page_of("a")).content.decode()
    assert page.count("Not known: this user may not run LRANGE") == 2
    assert "no forced release" not in page
    assert locks["default"].holder("a").token_id in page  # type: ignore[union-attr]


def test_a_lock_that_was_freed_was_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    lock("a", using="locmem", timeout=60).acquire()
    locks["locmem"].force_release("a")
    (entry,) = locks["locmem"].history("a")
    object.__setattr__(entry, "event", "freed")
    monkeypatch.setattr(LocMemLockBackend, "history", lambda *args, **options: [entry])
    page = root().get(page_of("a", "locmem")).content.decode()
    assert "Freed by a Celery worker" in page
    assert "Released by force" not in page


def test_times_are_for_readers_and_for_programs(client: redis.Redis, settings: Any) -> None:
    """They are in the reader's zone and language, with UTC in the title and the attribute."""
    settings.TIME_ZONE = "Europe/Berlin"
    since = datetime(2025, 11, 30, 23, 30, tzinfo=UTC)
    hold_as(client, "a", ttl=None, held_for=time.time() - since.timestamp())
    page = root().get(page_of("a"), headers={"Accept-Language": "de"}).content.decode()
    acquired = locks["default"].holder("a").acquired_at  # type: ignore[union-attr]
    assert acquired is not None
    assert f'datetime="{acquired.isoformat(timespec="seconds")}"' in page
    assert f'title="{acquired:%Y-%m-%d %H:%M:%S} UTC"' in page
    assert "1. Dezember 2025,</span> <span>00:30:00 " in page
