"""The page of a flash sale in a browser, with the shop served by several processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.window import Visitor
from tests.tools import PATIENCE, ROOT

GUARDED = ["Lock", "Lock with fencing"]
LONG = 90_000
"""Milliseconds that a rush may take on a machine with a lot to do."""


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[str, str]]:
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
        yield sale[1], sale[2]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def look(chromium: Browser, shop: tuple[str, str]) -> Iterator[Callable[..., Page]]:
    """Return a window that shows the sale; no script may fail, and the policy must be kept."""
    visitors: list[Visitor] = []

    def open_page() -> Page:
        base, sale = shop
        visitors.append(Visitor(chromium.new_context(), base))
        return visitors[-1].open(sale)

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
    verdict = rush(page, guard, buyers=90, units=40)
    expect(verdict).to_have_text(
        f"{guard}: sold what was there and no more, 40 orders for 40 units. "
        f"50 buyers were told that it is sold out.",
        timeout=LONG,
    )
    expect(verdict).to_have_attribute("data-kind", "good")
    for field, value in {"orders": 40, "oversold": 0, "stock": 0, "waiters": 0}.items():
        expect(shown(page, field)).to_have_text(str(value))
    chart = page.locator("#chart svg")
    expect(chart).to_have_attribute("aria-label", re.compile("^40 orders for 40 units in "))
    expect(chart.locator(".oversold")).to_have_count(0)
    row = result(page, guard)
    expect(row.locator("td")).to_contain_text(["90", "40", "40", "0"])


def test_without_a_guard_the_oversale_is_plain(look: Callable[..., Page]) -> None:
    page = look()
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


def test_a_lock_alone_does_not_stop_who_has_lost_it(look: Callable[..., Page]) -> None:
    page = look()
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
    expect(result(page, "Lock, one stalls").locator("td").first).to_have_text("50")
    expect(result(page, "Lock with fencing, one stalls").locator("td").nth(3)).to_have_text("0")
