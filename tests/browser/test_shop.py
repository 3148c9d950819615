"""The page of a flash sale in a browser, with the shop served by several processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.window import Visitor
from tests.tools import PATIENCE, ROOT

GUARDED = ["Lock", "Lock with fencing"]
LONG = 90_000
"""Milliseconds that a rush may take on a machine with a lot to do."""

WATCH = """
    (units) => {
        const verdict = document.getElementById("verdict");
        const orders = document.querySelector('[data-field="orders"]');
        const waiters = document.querySelector('[data-field="waiters"]');
        window.seen = { orders: [], waiters: 0, holders: new Set() };
        new MutationObserver(() => {
            if (!verdict.textContent.includes(` ${units} units`)) {
                return; // what is left of another rush
            }
            window.seen.orders.push(Number(orders.textContent));
            window.seen.waiters = Math.max(window.seen.waiters, Number(waiters.textContent));
            window.seen.holders.add(document.querySelector('[data-field="holder"]').textContent);
        }).observe(document.getElementById("sale"), { subtree: true, childList: true });
    }
"""
"""Notes what the page shows meanwhile."""


@dataclass(frozen=True)
class Shop:
    base: str
    sale: str


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "example_project.demo", "--sale"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        sale = re.search(r"^Sale +(http://[^/]+)(/sale/\d+/)$", said, re.MULTILINE)
        assert sale, said
        yield Shop(sale[1], sale[2])
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def look(chromium: Browser, shop: Shop) -> Iterator[Callable[..., Page]]:
    """Return a window that shows the sale; no script may fail, and the policy must be kept."""
    visitors: list[Visitor] = []

    def open_page(**options: Any) -> Page:
        visitors.append(Visitor(chromium.new_context(**options), shop.base))
        return visitors[-1].open(shop.sale)

    yield open_page
    for visitor in visitors:
        visitor.context.close()
    assert [visitor.complaints for visitor in visitors] == [[]] * len(visitors)


def rush(page: Page, guard: str, *, buyers: int, units: int, stall: bool = False) -> Locator:
    """Start a rush with the mouse; return what the page says of it."""
    page.get_by_role("radio", name=guard, exact=True).check()
    page.get_by_role("checkbox").set_checked(stall)
    page.get_by_label("Units in stock").fill(str(units))
    page.get_by_label("Buyers at once").fill(str(buyers))
    page.get_by_role("button", name="Start the rush").click()
    return page.locator("#verdict")


def shown(page: Page, field: str) -> Locator:
    return page.locator(f'[data-field="{field}"]')


def result(page: Page, label: str) -> Locator:
    head = page.get_by_role("rowheader", name=label, exact=True)
    return page.locator("#results tr").filter(has=head)


@pytest.mark.parametrize("guard", GUARDED)
def test_a_guarded_sale_ends_when_the_stock_does(look: Callable[..., Page], guard: str) -> None:
    page = look()
    page.evaluate(WATCH, 40)
    verdict = rush(page, guard, buyers=90, units=40)
    expect(verdict).to_have_text(
        f"{guard}: sold what was there and no more, 40 orders for 40 units. "
        f"50 buyers were told that it is sold out.",
        timeout=LONG,
    )
    expect(verdict).to_have_attribute("data-kind", "good")
    for field, value in {"orders": 40, "oversold": 0, "stock": 0, "waiters": 0}.items():
        expect(shown(page, field)).to_have_text(str(value))
    seen = page.evaluate("({ ...window.seen, holders: Array.from(window.seen.holders) })")
    assert max(seen["orders"]) == 40
    assert seen["waiters"] > 0
    assert any(re.search(r":\d+ \(", holder) for holder in seen["holders"])
    chart = page.locator("#chart svg")
    expect(chart).to_have_attribute("aria-label", re.compile("^40 orders for 40 units in "))
    expect(chart.locator(".oversold")).to_have_count(0)
    line = chart.locator(".orders").get_attribute("points") or ""
    dashes = float(chart.locator(".units").get_attribute("y1") or 0)
    assert float(line.split(",")[-1]) == pytest.approx(dashes, abs=0.1)
    row = result(page, guard)
    expect(row.locator("td")).to_contain_text(["90", "40", "40", "0"])


def test_without_a_guard_the_oversale_is_plain(look: Callable[..., Page]) -> None:
    page = look()
    other = look()
    verdict = rush(page, "No guard", buyers=90, units=10)
    expect(verdict).to_contain_text("No guard: oversold by ", timeout=LONG)
    expect(verdict).to_have_attribute("data-kind", "bad")
    expect(page.locator('[data-figure="oversold"]')).to_have_attribute("data-kind", "bad")
    oversold = int(shown(page, "oversold").inner_text())
    assert oversold > 0
    assert int(shown(page, "orders").inner_text()) == 10 + oversold
    expect(page.locator("#chart svg .oversold")).to_have_count(1)
    row = result(page, "No guard")
    expect(row.locator("td.bad")).to_have_text(str(oversold))
    expect(shown(other, "oversold")).to_have_text(str(oversold))
    expect(other.locator("#verdict")).to_have_text(verdict.inner_text())


def test_a_lock_alone_does_not_stop_who_has_lost_it(look: Callable[..., Page]) -> None:
    page = look(viewport={"width": 850, "height": 800})
    before = shown(page, "orders").bounding_box()
    verdict = rush(page, "Lock", buyers=50, units=45, stall=True)
    expect(verdict).to_contain_text("Lock, one stalls: ", timeout=LONG)
    expect(verdict).to_have_attribute("data-kind", "bad", timeout=LONG)
    assert int(shown(page, "orders").inner_text()) + int(shown(page, "stock").inner_text()) > 45
    verdict = rush(page, "Lock with fencing", buyers=50, units=45, stall=True)
    expect(verdict).to_contain_text(
        "Lock with fencing, one stalls: sold what was there and no more, 45 orders for 45 units. "
        "The buyer that stalled was refused: its fence was outdated.",
        timeout=LONG,
    )
    assert shown(page, "orders").bounding_box() == before, "the figures moved with the verdict"
    expect(result(page, "Lock, one stalls").locator("td").first).to_have_text("50")
    expect(result(page, "Lock with fencing, one stalls").locator("td").nth(3)).to_have_text("0")
