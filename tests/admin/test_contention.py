"""The last hour of a lock's group on its page in the admin."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
import redis
from django.utils.html import escape

from django_redis_lock import locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.contention import SLOT, Contention
from tests.settings import REDIS
from tests.tools.admin import hold_as, page_of, root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server")]

KEY = "lock-contention:product"


def entry(**operators: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": REDIS, "LOCATION": "locks", "OPERATORS": operators}}


@pytest.fixture(autouse=True)
def on(settings: Any, no_workers: None) -> None:
    settings.LOCKS = entry(CONTENTION=True, GROUPS={"product:*": "product"})


def shown(name: str, **headers: str) -> str:
    """Return the part of the page with the hour, without tags and repeated blanks."""
    html = root().get(page_of(name), headers=headers or None).text
    found = re.search(r'<fieldset [^>]*id="lock-hour">.*?</fieldset>', html, re.DOTALL)
    return found[0] if found else ""


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.mark.parametrize("held", [True, False])
def test_the_page_of_a_lock_shows_the_hour_of_its_group(client: redis.Redis, held: bool) -> None:
    """As facts, and as a chart whose text says the same, whether or not it is held."""
    if held:
        hold_as(client, "product:1")
    now = client.time()[0] // SLOT
    client.hset(KEY, mapping={str(now - 4): "D19f30x7", str(now): "K1a1170y2z1"})
    html = shown("product:1")
    text = words(html)
    for part in (
        "Last hour of the group “ product ”",
        "Acquired 1,200",
        "Waited median < 1 ms, 95th percentile < 1 ms",
        "Held median ≈ 8 ms, 95th percentile ≈ 10 ms",
        "Refused 7 at once, 2 after a wait",
        "Lost 1",
        "1,172 at most",
    ):
        assert part in text, (part, text)
    (label,) = re.findall(r'aria-label="([^"]*)"', html)
    assert re.fullmatch(r".*m\.: 30 acquired, 7 refused; .*m\.: 1170 acquired, 2 refused", label)
    heights = re.findall(r'class="lock-acquired" .*? height="([\d.]+)"', html)
    assert [float(each) for each in heights if float(each)] == [1.2, 47.9]


@pytest.mark.parametrize(
    ("language", "part"), [("de", "Letzte Stunde der Gruppe"), ("zh-hans", "已获得 12")]
)
def test_numbers_in_the_chart_are_not_translated(
    client: redis.Redis, language: str, part: str
) -> None:
    """German writes 1,5, which is no number for SVG."""
    client.hset(KEY, str(client.time()[0] // SLOT), "a11b1x3")
    html = shown("product:1", **{"accept-language": language})
    assert re.search(r'height="38.4"', html)
    assert part in words(html)


def test_locks_in_no_group_are_named_so() -> None:
    """Without an event there is no chart."""
    html = shown("single")
    assert "Last hour of all locks in no group" in html
    assert "Acquired 0" in words(html)
    assert "<svg" not in html


def test_nothing_is_shown_if_it_is_switched_off(settings: Any) -> None:
    settings.LOCKS = entry()
    assert shown("product:1") == ""


def test_the_name_of_a_group_is_escaped(settings: Any) -> None:
    settings.LOCKS = entry(CONTENTION=True, GROUPS={"product:*": "<b>{0}</b>"})
    assert escape("<b>{0}</b>") in shown("product:1")


def test_an_hour_that_is_not_known_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is shown, and no number."""

    def refuse(name: str) -> Contention:
        raise LockUnavailable("It does not answer.")

    monkeypatch.setattr(locks["default"], "contention", refuse)
    text = words(shown("product:1"))
    assert text == "Last hour of the group “ product ” Not known: It does not answer."
