"""Takes the pictures for the documentation: ``python -m tests.browser.screenshots``.

The shop runs as in the demo, with its web server. The sales are real; the holders on the admin page
are made up, so that the pictures show every kind of them.
"""

from __future__ import annotations

import os
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis
from playwright.sync_api import Browser, FloatRect, Locator, Page, sync_playwright

from example_project.demo.services import Services, running
from tests.browser.chromium import chromium_path

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
ADMIN = "ada"
WIDE = {"width": 1440, "height": 720}
NARROW = {"width": 390, "height": 780}
SALE = {"width": 1180, "height": 1150}
HALF = {"width": 560, "height": 1400}
HALF_SOLD = """
    () => document.querySelector('[data-field="waiters"]').textContent > 20
        && document.querySelector('[data-field="orders"]').textContent >= 50
"""

RENEWED = {"auto_renew": True, "lease": 12_000}
IMPORT = {**RENEWED, "task_name": "shop.tasks.import_products", "thread": "MainThread"}
REPORT = {**RENEWED, "task_name": "shop.tasks.nightly_report"}
HOLDERS: dict[str, dict[str, Any]] = {
    "import:7": {
        **IMPORT,
        "ttl": 9.2,
        "held_for": 7520,
        "host": "worker-1",
        "pid": 3071,
        "task_id": "7f0c3bb2-6b1f-4d0a-9a55-0f3f2f6f6a10",
        "metadata": {"supplier": "Lamps & Sons", "started by": "beat"},
    },
    "import:12": {
        **IMPORT,
        "ttl": 8.6,
        "held_for": 5,
        "host": "worker-2",
        "pid": 903,
        "task_id": "c2a1c0de-52d8-4d0e-b6a0-3b8e5d0b7c11",
    },
    "nightly-report": {
        **REPORT,
        "ttl": 7.9,
        "held_for": 184,
        "host": "worker-3",
        "pid": 77,
        "task_id": "0b77a3d4-90fd-4f0b-8a4e-6f3f6d1c2e55",
    },
    "product:42": {"ttl": 9, "held_for": 2, "host": "web-1", "pid": 812, "thread": "gunicorn-4"},
    "migration": {"ttl": None, "held_for": 93_000, "host": "admin-1", "pid": 15, "thread": "main"},
}
FOREIGN, FOREIGN_LEASE = "legacy-export", 540
WAITERS = {"import:7": 3, "product:42": 2}


def main() -> None:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright keeps an event loop here
    with running() as services, sync_playwright() as playwright:
        from django.contrib.auth import get_user_model

        get_user_model().objects.create_superuser(ADMIN, password=ADMIN)
        browser = playwright.chromium.launch(executable_path=chromium_path())
        log_in = partial(logged_in, browser, services)
        with held_locks(services):
            take_list(log_in(viewport=WIDE), "admin-list")
            take_list(log_in(viewport=WIDE, color_scheme="dark"), "admin-list-dark")
            take_list(log_in(viewport=NARROW, device_scale_factor=2), "admin-list-narrow")
            take_list(log_in(viewport=WIDE, locale="he"), "admin-list-rtl")
            take_lock(log_in(viewport=WIDE))
            take_confirmation(log_in(viewport=WIDE))
        take_sales(browser, services)
        browser.close()


def take_sales(browser: Browser, services: Services) -> None:
    """Take pictures of a flash sale without a guard, with a lock while it lasts, and fenced."""
    from example_project.shop.models import Product

    product = Product.objects.create(name="Headphones", slug="headphones", stock=100, price=79)
    address = f"{services.address}sale/{product.pk}/"

    def look(**options: Any) -> Page:
        page = browser.new_context(**options).new_page()
        page.goto(address)
        return page

    page = look(viewport=SALE)
    rush(page, "No guard").wait_for()
    page.screenshot(path=IMAGES / "sale-none.png")
    ended = rush(page, "Lock")
    page.wait_for_function(HALF_SOLD)
    page.screenshot(path=IMAGES / "sale-running.png")
    ended.wait_for()
    page.get_by_role("checkbox").check()
    rush(page, "Lock, one stalls").wait_for()
    page.screenshot(path=IMAGES / "sale-stall.png")
    rush(page, "Lock with fencing, one stalls").wait_for()
    page.context.close()
    dark = look(viewport=SALE, color_scheme="dark")
    dark.locator("#chart polyline").first.wait_for()
    take(dark, "sale-dark")
    halves = []
    for guard in ("No guard", "Lock"):
        half = look(viewport=HALF, device_scale_factor=1.5)
        half.get_by_role("checkbox").uncheck()
        rush(half, guard).wait_for()
        halves.append(half.screenshot(clip=result_of(half)))
        half.context.close()
    take_side_by_side(browser.new_page(viewport={"width": 1720, "height": 900}), halves)
    narrow = look(viewport=NARROW, device_scale_factor=2, color_scheme="dark")
    narrow.locator("#chart polyline").first.wait_for()
    take(narrow, "sale-narrow", whole=True)


def rush(page: Page, label: str) -> Locator:
    """Start a rush; return what is there once it has ended."""
    page.get_by_role("radio", name=label.partition(",")[0], exact=True).check()
    page.get_by_role("button", name="Start the rush").click()
    ended = page.locator("#verdict:is([data-kind=good], [data-kind=bad])")
    return ended.filter(has_text=f"{label}: ")


def result_of(page: Page) -> FloatRect:
    """Return the area of a sale's page from its verdict to its chart."""
    top, bottom = (page.locator(part).bounding_box() for part in ("#verdict", "#chart"))
    assert top
    assert bottom
    end = bottom["y"] + bottom["height"]
    return {"x": 0, "y": top["y"] - 16, "width": HALF["width"], "height": end - top["y"] + 32}


def take_side_by_side(page: Page, pictures: list[bytes]) -> None:
    """Take the picture of README: the same sale without and with the lock."""
    images = "".join(
        f'<img src="data:image/png;base64,{b64encode(picture).decode()}">' for picture in pictures
    )
    page.set_content(f"<body style='margin:0'><div style='display:inline-flex'>{images}</div>")
    page.locator("div").screenshot(path=IMAGES / "sale-none-and-lock.png")
    page.close()


@contextmanager
def held_locks(services: Services) -> Iterator[None]:
    """Hold a few locks, with waiters and a past, and renew their leases meanwhile."""
    from django_redis_lock import lock, locks
    from django_redis_lock.support.process import current_process
    from tests.tools import Background, eventually, waiters
    from tests.tools.admin import hold_as

    current_process().host = "web-2"  # the waiters'
    with redis.Redis.from_url(services.server.url(1)) as server:
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(1):
                for name, holder in HOLDERS.items():
                    if holder["ttl"] is not None:
                        server.pexpire(f"lock:{name}", int(holder["ttl"] * 1000))
                        server.zadd("lock-index", {name: int((time.time() + 10) * 1000)})

        past = {**HOLDERS["import:7"], "held_for": 60, "host": "worker-2", "task_id": "e5b1"}
        hold_as(server, "import:7", **past)
        locks["default"].force_release("import:7", by="grace", reason="no row for an hour")
        for name, holder in HOLDERS.items():
            hold_as(server, name, **holder)
        server.set(f"lock:{FOREIGN}", "set by another program", ex=FOREIGN_LEASE)
        server.zadd("lock-index", {FOREIGN: 4_000_000_000_000})
        for name, count in WAITERS.items():
            for number in range(1, count + 1):
                Background(lambda name=name: lock(name, timeout=30, blocking_timeout=120).acquire())
                eventually(lambda name=name, number=number: waiters(name) == number)
        renewing = Background(renew)
        yield
        ended.set()
        renewing.outcome()
        locks.reset()


def logged_in(browser: Browser, services: Services, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(f"{services.address}admin/django_redis_lock/heldlock/?o=-3")
    page.locator("#id_username").fill(ADMIN)
    page.locator("#id_password").fill(ADMIN)
    page.locator("input[type=submit]").click()
    page.locator("#held-locks-live").wait_for()
    return page


def take(page: Page, name: str, *, whole: bool = False) -> None:
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.screenshot(path=IMAGES / f"{name}.png", full_page=whole)
    page.context.close()


def take_list(page: Page, name: str) -> None:
    page.locator("input.action-select").nth(1).check()
    page.locator("select[name=action]").select_option("release_locks")
    take(page, name)


def take_lock(page: Page) -> None:
    page.get_by_role("link", name="import:7").click()
    page.locator("#held-locks-live").wait_for()
    take(page, "admin-lock", whole=True)


def take_confirmation(page: Page) -> None:
    for number in (1, 2):
        page.locator("input.action-select").nth(number).check()
    page.locator("select[name=action]").select_option("release_locks")
    page.locator("button[name=index]").click()
    page.get_by_label("Reason").fill("the supplier's server hangs")
    take(page, "admin-confirmation")


if __name__ == "__main__":
    main()
