"""The page of a flash sale in a browser, with the shop served by several processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Locator, Page, expect

from example_project.shop.csp import POLICY
from tests.browser.measures import CONTRAST, spilling
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
    """Where a sale is, and where the locks of the shop are."""

    base: str
    sale: str
    locks: str


@contextmanager
def running_shop() -> Iterator[Shop]:
    """Start a shop as ``make demo`` does, with something on sale."""
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
        server = re.search(r"^Valkey +(redis:.*)/0$", said, re.MULTILINE)
        assert sale, said
        assert server, said
        yield Shop(sale[1], sale[2], f"{server[1]}/1")
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with running_shop() as shop:
        yield shop


@pytest.fixture
def look(chromium: Browser, shop: Shop) -> Iterator[Callable[..., Page]]:
    """Return a window that shows the sale; no script may fail, and the policy must be kept."""
    visitors: list[tuple[Visitor, list[str]]] = []

    def open_page(where: Shop = shop, *, ignore: Collection[str] = (), **options: Any) -> Page:
        visitor = Visitor(chromium.new_context(**options), where.base)
        visitors.append((visitor, list(ignore)))
        return visitor.open(where.sale)

    yield open_page
    for visitor, _ in visitors:
        visitor.context.close()
    complaints = [
        complaint
        for visitor, ignored in visitors
        for complaint in visitor.complaints
        if not any(each in complaint for each in ignored)
    ]
    assert complaints == []


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
    """Orders rise to the stock and no further; the page shows holder, waiters and a chart."""
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
    """The page shows the oversale in words, in red and in the chart, in each window."""
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
    """A buyer that stalls beyond its lease writes stale data; fencing refuses it."""
    page = look()
    verdict = rush(page, "Lock", buyers=50, units=45, stall=True)
    expect(verdict).to_contain_text("Lock, one stalls: ", timeout=LONG)
    expect(verdict).to_have_attribute("data-kind", "bad", timeout=LONG)
    assert int(shown(page, "orders").inner_text()) + int(shown(page, "stock").inner_text()) > 45
    verdict = rush(page, "Lock with fencing", buyers=50, units=45, stall=True)
    expect(verdict).to_contain_text(
        "Lock with fencing, one stalls: sold what was there and no more, 45 orders for 45 units.",
        timeout=LONG,
    )
    expect(result(page, "Lock, one stalls").locator("td").first).to_have_text("50")
    expect(result(page, "Lock with fencing, one stalls").locator("td").nth(3)).to_have_text("0")


def test_one_rush_at_a_time(look: Callable[..., Page], shop: Shop) -> None:
    """A second one is refused by the view's decorator, and the page says so."""
    page = look(ignore=["409"])
    with redis.Redis.from_url(shop.locks) as client:
        product = shop.sale.rstrip("/").rpartition("/")[2]
        assert client.set(f"lock:rush:{product}", "another", nx=True, px=600_000)
        verdict = rush(page, "Lock", buyers=20, units=21)
        expect(verdict).to_have_text(
            "Somebody else is doing this right now. Please try again in a moment."
        )
        expect(verdict).to_have_attribute("data-kind", "bad")
        client.delete(f"lock:rush:{product}")
    page.get_by_role("button", name="Start the rush").click()
    expect(verdict).to_contain_text("20 orders for 21 units", timeout=LONG)
    expect(page.get_by_role("button", name="Start the rush")).to_be_enabled()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"guard": "hope", "buyers": "1", "units": "1"}, "guard: "),
        ({"guard": "lock", "buyers": "301", "units": "1"}, "buyers: "),
        ({"guard": "lock", "buyers": "1", "units": "0"}, "units: "),
    ],
)
def test_senseless_rushes(
    look: Callable[..., Page], shop: Shop, wanted: dict[str, str], told: str
) -> None:
    """What the form refuses, the shop refuses too, and nothing begins."""
    page = look()
    token = page.locator("input[name=csrfmiddlewaretoken]").input_value()
    answer = page.request.post(
        f"{shop.base}{shop.sale}rush/",
        form={"csrfmiddlewaretoken": token, **wanted},
        headers={"Accept": "application/json", "Referer": shop.base},
    )
    assert answer.status == 400
    assert answer.json()["detail"].startswith(told)
    unknown = page.request.post(
        f"{shop.base}/buy/1/?guard=hope",
        form={"csrfmiddlewaretoken": token},
        headers={"Referer": shop.base},
    )
    assert unknown.status == 400
    assert "none, lock, fenced" in unknown.json()["error"]


def test_without_the_lock_server(look: Callable[..., Page]) -> None:
    """The page still works, says what is wrong, and says that no rush can start."""
    with running_shop() as shop:
        page = look(shop, ignore=["503"])
        expect(shown(page, "holder")).to_have_text("nobody")
        with redis.Redis.from_url(shop.locks) as client:
            client.shutdown(nosave=True)
        expect(shown(page, "holder")).to_have_text("the lock server can't be asked")
        verdict = rush(page, "Lock", buyers=1, units=1)
        expect(verdict).to_contain_text("This can't be done at the moment.")
        page.reload()
        expect(shown(page, "holder")).to_have_text("the lock server can't be asked")
        page.context.close()  # before the shop ends, of which it would complain


def test_with_the_keyboard_alone(look: Callable[..., Page]) -> None:
    """Guard, numbers and button are reached with Tab and arrows, and Enter starts the rush."""
    page = look()
    page.get_by_role("checkbox").uncheck()
    page.get_by_role("radio", name="No guard").check()
    page.get_by_role("radio", name="No guard").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Lock", exact=True)).to_be_checked()
    for digits in ("12", "5"):
        page.keyboard.press("Tab")
        page.keyboard.press("Control+a")
        page.keyboard.type(digits)
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("5 orders for 12 units", timeout=LONG)
    expect(shown(page, "stock")).to_have_text("7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_it_can_be_read_on_any_screen(look: Callable[..., Page], width: int, scheme: str) -> None:
    """Every text has a contrast of at least 4.5, and nothing is wider than the window."""
    page = look(viewport={"width": width, "height": 800}, color_scheme=scheme)
    verdict = rush(page, "Lock", buyers=6, units=5)
    expect(verdict).to_contain_text("5 orders for 5 units. 1 buyers", timeout=LONG)
    assert spilling(page) <= 0
    texts = ["h1", "h1 .price", "h2", ".top a", "legend", ".field", ".figure .label", ".legend li"]
    texts += [".figure .value", ".quiet", "button.main", "#verdict", "dt", "dd", "#results td"]
    texts += [".guards input:checked + span", ".guards input:not(:checked) + span"]
    seen = {text: page.locator(text).first.evaluate(CONTRAST) for text in texts}
    assert {text: ratio for text, ratio in seen.items() if ratio < 4.5} == {}
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor").startswith("rgb(17,")
    assert dark == (scheme == "dark")


def test_the_front_page_sells(look: Callable[..., Page], shop: Shop) -> None:
    """A buyer buys one, under the policy that all pages are sent with."""
    page = look()
    verdict = rush(page, "Lock", buyers=1, units=3)
    expect(verdict).to_contain_text("1 orders for 3 units", timeout=LONG)
    answer = page.goto(shop.base)
    assert answer is not None
    assert answer.headers["content-security-policy"] == POLICY
    for number, button in enumerate(["Buy", "Buy without the lock"], 1):
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_text(f"{2 - number} in stock, {1 + number} sold")).to_be_visible()
        expect(page.locator("#answer")).to_have_text(re.compile(r"^Order \d+ placed\.$"))
    assert spilling(page) <= 0


def test_without_scripts(look: Callable[..., Page]) -> None:
    """The form works, and the page shows how it was when it was loaded."""
    page = look(java_script_enabled=False)
    page.get_by_role("checkbox").uncheck()
    page.get_by_label("Units in stock").fill("3")
    page.get_by_label("Buyers at once").fill("1")
    page.get_by_role("button", name="Start the rush").click()
    expect(shown(page, "units")).to_have_text("3")
    expect(page.locator("#chart")).to_be_hidden()
