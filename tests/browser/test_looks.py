"""How the pages look: dark, narrow, and from right to left."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from playwright.sync_api import expect

from django_redis_lock import lock, locks
from tests.browser.measures import CONTRAST, faults
from tests.browser.window import Hold, Visit, box, choose_release, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, hold_as, page_of


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(visit: Visit, client: redis.Redis, scheme: str) -> None:
    """In both colour schemes all texts have a contrast of at least 4.5."""
    task = {"task_id": "8c1f", "task_name": "shop.import", "lease": 6_000_000}
    hold_as(client, "a", ttl=600, held_for=9000, auto_renew=True, **task)
    page = visit(color_scheme=scheme).open()
    expect(row(page, "a")).to_be_visible()
    seen = {}
    for selector in ("h1", ".lock-clock", ".lock-aside", ".lock-wrong", ".field-waiters"):
        seen[selector] = page.locator(selector).first.evaluate(CONTRAST)
    for selector in (".lock-live span", ".lock-live button"):
        seen[selector] = page.locator(selector).first.evaluate(CONTRAST)
    choose_release(page, "a")
    for selector in ("#content p", "#content td", "#content label", ".cancel-link"):
        seen[selector] = page.locator(selector).first.evaluate(CONTRAST)
    page.goto(page.url.partition("/admin/")[0] + page_of("a"))
    for selector in (".lock-label", ".lock-value", ".lock-none"):
        seen[selector] = page.locator(selector).first.evaluate(CONTRAST)
    assert {selector: ratio for selector, ratio in seen.items() if ratio < 4.5} == {}
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


LONG = "catalogue:" + "very-long-name" * 20
NAMES = ["product:1", "catalogue/lamps:desk-lamp-with-dimmer", LONG]


def seed(client: redis.Redis) -> None:
    """Hold locks of all kinds, one with everything that its page can show."""
    task = {"task_id": "7f0c3bb2-6b1f-4d0a-9a55-0f3f2f6f6a10", "auto_renew": True}
    late = {"lease": 6_000_000}
    lock(NAMES[0], timeout=60).acquire()
    locks["default"].force_release(NAMES[0], by="grace", reason="no row for an hour")
    hold_as(
        client,
        NAMES[0],
        ttl=600,
        held_for=9000,
        host="worker-1.example.com",
        pid=30712,
        thread="ThreadPoolExecutor-0_0",
        task_name="shop.tasks.import_products",
        metadata={"supplier": "Lamps & Sons", "started_by": "beat"},
        **late,
        **task,
    )
    hold_as(client, NAMES[1], ttl=None, held_for=200_000, host="web-1", pid=812, thread="main")
    hold_as(client, LONG, host="h" * 200, task_id="8" * 36, task_name="shop.tasks." + "x" * 200)


@pytest.mark.parametrize("language", ["en", "he"])
@pytest.mark.parametrize("width", [320, 375, 768, 1280, 1440])
def test_it_fits(visit: Visit, client: redis.Redis, width: int, language: str) -> None:
    """Nothing is cut off, no word is broken, and nothing scrolls sideways."""
    seed(client)
    line = Background(lambda: lock(NAMES[0], timeout=60, blocking_timeout=60).acquire())
    eventually(lambda: waiters(NAMES[0]) == 1)
    visitor = visit(
        viewport={"width": width, "height": 800},
        locale=language,
        extra_http_headers={"Accept-Language": language},
    )
    page = visitor.open(LIST)
    expect(row(page, NAMES[0])).to_be_visible()
    assert page.evaluate("document.dir") == ("rtl" if language == "he" else "ltr")
    found = {"list": faults(page)}
    for name in NAMES:
        box(page, name).click(trial=True)
        for field in ("held_for", "lease_left", "waiters"):
            expect(row(page, name).locator(f".field-{field}")).to_be_visible()
    page.locator("#action-toggle").click(trial=True, position={"x": 12, "y": 6})
    expect(page.locator(".lock-total")).to_contain_text("3 held locks")
    for name in NAMES:
        visitor.open(page_of(name))
        expect(page.locator("#held-locks")).to_contain_text(name)
        found[f"lock {name}"] = faults(page)
    visitor.open(LIST)
    choose_release(page, *NAMES)
    expect(page.locator("input[name=confirmed]")).to_be_visible()
    found["confirmation"] = faults(page)
    assert {where: faults for where, faults in found.items() if faults} == {}
    locks["default"].force_release(NAMES[0])
    assert line.outcome()


@pytest.mark.parametrize("width", [320, 375])
def test_on_a_telephone_the_name_has_the_room(
    visit: Visit, client: redis.Redis, width: int
) -> None:
    """It has a line to itself, and figures have labels."""
    hold_as(client, "a", held_for=100)
    page = visit(viewport={"width": width, "height": 700}).open()
    table = page.locator("#held-locks").bounding_box()
    name = row(page, "a").locator(".field-lock").bounding_box()
    assert table is not None
    assert name is not None
    assert name["width"] > 0.8 * table["width"]
    told = "(element) => getComputedStyle(element, '::before').content"
    for field, label in (("held_for", "Held for"), ("lease_left", "Lease left")):
        cell = row(page, "a").locator(f".field-{field} [data-label]")
        assert cell.evaluate(told) == f'"{label}"'


def test_from_right_to_left_names_stay_as_they_are(visit: Visit, client: redis.Redis) -> None:
    """Hosts, ids and durations run from left to right."""
    seed(client)
    visitor = visit(locale="he", extra_http_headers={"Accept-Language": "he"})
    page = visitor.open(LIST)
    expect(row(page, NAMES[0])).to_be_visible()
    for path in (LIST, page_of(NAMES[0])):
        visitor.open(path)
        kinds = page.locator("#held-locks bdi").evaluate_all(
            """(all) => all.filter((one) => /[a-z]/.test(one.textContent)).map((one) => [
                getComputedStyle(one).direction, getComputedStyle(one).unicodeBidi])"""
        )
        assert kinds
        assert {direction for direction, _ in kinds} == {"ltr"}
        assert {bidi for _, bidi in kinds} == {"isolate"}


def test_red_is_for_what_is_wrong(visit: Visit, client: redis.Redis, settings: Any) -> None:
    """A renewed lock is not marked however long it is held; each mark says what is wrong."""
    settings.LOCKS = {
        "default": {**settings.LOCKS["default"], "OPERATORS": {"WARN_AFTER": {"slow*": 60}}}
    }
    hold_as(client, "calm", ttl=600, held_for=9000, auto_renew=True)
    hold_as(client, "slow", ttl=600, held_for=100, auto_renew=True)
    hold_as(client, "late", ttl=600, held_for=9000, auto_renew=True, lease=6_000_000)
    hold_as(client, "old", ttl=None, held_for=200_000)
    page = visit().open()
    wrong = {
        name: row(page, name).locator(".lock-wrong").all_inner_texts()
        for name in ("calm", "slow", "late", "old")
    }
    assert wrong == {
        "calm": [],
        "slow": ["held longer than 1 min"],
        "late": ["renewal is late"],
        "old": ["without end, held for 2\xa0d\xa07\xa0h"],
    }


def test_metadata_stands_by_itself(visit: Visit, client: redis.Redis) -> None:
    """Metadata called "Fence" are not shown as the fence."""
    hold_as(client, "a", metadata={"Fence": "of wood"})
    page = visit().open(page_of("a"))
    metadata = page.locator("#lock-metadata")
    expect(metadata.get_by_role("heading", name="Metadata")).to_be_visible()
    expect(metadata.locator(".lock-fact")).to_have_count(1)
    expect(metadata).to_contain_text("of wood")
    facts = page.locator("fieldset:not(#lock-metadata) .lock-label", has_text="Fence")
    expect(facts).to_have_count(1)
    expect(page.locator(".lock-label", has_text="Token id")).to_have_count(1)


def test_a_fact_is_beside_its_label(visit: Visit, hold: Hold) -> None:
    """On a wide page each fact takes one line."""
    hold("a", timeout=600)
    page = visit(viewport={"width": 1280, "height": 800}).open(page_of("a"))
    label, value = page.locator(".lock-label").first, page.locator(".lock-value").first
    left, right = label.bounding_box(), value.bounding_box()
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
