"""How the pages look: dark, narrow, and from right to left."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.admin_tools import LIST, hold_as, page_of
from tests.browser.window import Hold, Visit, choose_release, row

CONTRAST = """
    (element) => {
        const canvas = document.createElement("canvas")
            .getContext("2d", { willReadFrequently: true });
        const paint = (colour) => {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        };
        const light = () => {
            const [r, g, b] = Array.from(canvas.getImageData(0, 0, 1, 1).data, (byte) => byte / 255)
                .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const below = [];
        for (let each = element; each; each = each.parentElement) {
            below.unshift(getComputedStyle(each).backgroundColor);
        }
        paint("white");
        below.forEach(paint);
        const back = light();
        paint(getComputedStyle(element).color);
        const front = light();
        return (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    }
"""
"""How well the text of an element can be told from what is behind it (WCAG 2.2)."""


def spilling(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(visit: Visit, client: object, scheme: str) -> None:
    """In both schemes each of our texts has a contrast of 4.5 at least."""
    hold_as(client, "a", held_for=100, auto_renew=True, task_id="8c1f", task_name="shop.import")
    page = visit(color_scheme=scheme).open()
    expect(row(page, "a")).to_be_visible()
    seen = {}
    for selector in ("h1", ".lock-clock", ".lock-aside", ".lock-overdue", ".field-waiters"):
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


@pytest.mark.parametrize("language", ["en", "he"])
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_no_page_is_wider_than_its_window(
    visit: Visit, client: object, width: int, language: str
) -> None:
    """Long names break, tables scroll by themselves, and what matters can be reached."""
    name = "catalogue:" + "very-long-name" * 20
    hold_as(client, name, host="h" * 200, task_id="8" * 36, task_name="shop.tasks." + "x" * 200)
    visitor = visit(
        viewport={"width": width, "height": 800},
        locale=language,
        extra_http_headers={"Accept-Language": language},
    )
    page = visitor.open(LIST)
    expect(row(page, name)).to_be_visible()
    assert page.evaluate("document.dir") == ("rtl" if language == "he" else "ltr")
    assert spilling(page) <= 0
    row(page, name).locator("a").click()
    expect(page.locator("#held-locks")).to_contain_text(name)
    assert spilling(page) <= 0
    page.locator("#held-locks input[type=submit]").click()
    expect(page.locator("input[name=confirmed]")).to_be_visible()
    assert spilling(page) <= 0


def test_a_fact_is_beside_its_label(visit: Visit, hold: Hold) -> None:
    """On a wide page each line of a lock's page is one line."""
    hold("a", timeout=600)
    page = visit(viewport={"width": 1280, "height": 800}).open(page_of("a"))
    label, value = page.locator(".lock-label").first, page.locator(".lock-value").first
    left, right = label.bounding_box(), value.bounding_box()
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]


def test_a_narrow_list_shows_what_matters(visit: Visit, hold: Hold) -> None:
    """On a telephone the figures that tell least give way."""
    hold("a", timeout=600)
    page = visit(viewport={"width": 375, "height": 700}).open()
    shown = {
        column: row(page, "a").locator(f".field-{column}").is_visible()
        for column in ("lock", "holder", "held_for", "lease_left", "fence", "backend")
    }
    assert [column for column, visible in shown.items() if not visible] == ["fence", "backend"]
