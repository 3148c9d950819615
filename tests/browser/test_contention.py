"""The last hour of a lock's group on its page, in a browser."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from playwright.sync_api import expect

from django_redis_lock.protocol.contention import SLOT
from tests.browser.measures import CONTRAST, faults
from tests.browser.test_axe import violations
from tests.browser.window import Visit
from tests.settings import REDIS
from tests.tools.admin import hold_as, page_of

KEY = "lock-contention:product"
PAST = [0, 12, 44, 51, 130, 340, 412, 390, 220, 0, 80, 35]


@pytest.fixture(autouse=True)
def hour(client: redis.Redis, settings: Any) -> None:
    """A lock that is held, in a group with an hour behind it."""
    operators = {"CONTENTION": True, "GROUPS": {"product:*": "product"}}
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": "locks", "OPERATORS": operators}}
    now = client.time()[0] // SLOT
    for number, acquired in enumerate(reversed(PAST)):
        if acquired:
            text = f"H{acquired}a{acquired - acquired // 4}k{acquired // 4}x{acquired // 9}z1"
            client.hset(KEY, str(now - number), text)
    hold_as(client, "product:1", ttl=600, held_for=90)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "he"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_hour_can_be_read(visit: Visit, width: int, language: str, scheme: str) -> None:
    """It fits, no rule of accessibility is broken, and its colours stand out."""
    visitor = visit(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        locale=language,
        extra_http_headers={"Accept-Language": language},
    )
    page = visitor.open(page_of("product:1"))
    chart = page.locator("svg.lock-hour")
    expect(chart.locator("g")).to_have_count(12)
    assert faults(page) == {}
    assert violations(page) == []
    visitor.complaints[:] = [text for text in visitor.complaints if "inline style" not in text]
    seen = [
        page.locator(f"#lock-hour {selector}").first.evaluate(CONTRAST)
        for selector in (".lock-axis span", ".lock-legend span")
    ]
    assert min(seen) >= 4.5
    first = chart.locator("g").nth(1).bounding_box()
    last = chart.locator("g").nth(11).bounding_box()
    assert first is not None
    assert last is not None
    assert (first["x"] < last["x"]) == (language == "en")


@pytest.mark.usefixtures("quick")
def test_the_hour_keeps_itself_up_to_date(visit: Visit, client: redis.Redis) -> None:
    """The open page follows what is counted."""
    page = visit().open(page_of("product:1"))
    expect(page.locator("#lock-hour")).to_contain_text("1,714")
    client.hset(KEY, str(client.time()[0] // SLOT), "a1035")
    expect(page.locator("#lock-hour")).to_contain_text("2,714")
    expect(page.locator("svg.lock-hour g")).to_have_count(12)
