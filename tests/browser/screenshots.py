"""Takes the pictures of the admin for the documentation, with holders of every kind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from playwright.sync_api import Browser, Page, sync_playwright

from example_project.demo.services import Services, running
from tests.browser.chromium import chromium_path

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
ADMIN = "ada"

RENEWED = {"auto_renew": True, "lease": 12_000}
IMPORT = {**RENEWED, "task_name": "shop.tasks.import_products", "thread": "MainThread"}
REPORT = {**RENEWED, "task_name": "shop.tasks.nightly_report", "task_id": "0b77a3d4-90fd-4f0b"}
SUPPLIER = {"supplier": "Lamps & Sons", "started by": "beat"}
FIRST = {**IMPORT, "task_id": "7f0c3bb2-6b1f-4d0a-9a55-0f3f2f6f6a10", "metadata": SUPPLIER}
HOLDERS: dict[str, tuple[float | None, float, str, int, dict[str, Any]]] = {
    "import:7": (9.2, 7520, "worker-1", 3071, FIRST),
    "import:12": (8.6, 5, "worker-2", 903, {**IMPORT, "task_id": "c2a1c0de-52d8-4d0e"}),
    "nightly-report": (7.9, 184, "worker-3", 77, REPORT),
    "product:42": (9, 2, "web-1", 812, {"thread": "gunicorn-4"}),
    "migration": (None, 93_000, "admin-1", 15, {"thread": "main"}),
}
"""Lease left, held for, host, process id and the rest of each record, by the lock's name."""
FOREIGN = "legacy-export"
WAITERS = {"import:7": 3, "product:42": 2}


def main() -> None:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright keeps an event loop here
    os.environ["SHOP_SUPPLIER_SECONDS"] = "8"  # long enough for a picture
    with running() as services, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path())
        take_admin(browser, services)
        browser.close()


def take(page: Page, name: str, **options: Any) -> None:
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.screenshot(path=IMAGES / f"{name}.png", **options)
    page.context.close()


def take_admin(browser: Browser, services: Services) -> None:
    from django.contrib.auth import get_user_model

    get_user_model().objects.create_superuser(ADMIN, password=ADMIN)

    def listed(*ticked: int) -> Page:
        page = browser.new_context(viewport={"width": 1440, "height": 720}).new_page()
        page.goto(f"{services.address}admin/django_redis_lock/heldlock/?o=-3")
        page.locator("#id_username").fill(ADMIN)
        page.locator("#id_password").fill(ADMIN)
        page.locator("input[type=submit]").click()
        page.locator("#held-locks-live").wait_for()
        for number in ticked:
            page.locator("input.action-select").nth(number).check()
            page.locator("select[name=action]").select_option("release_locks")
        return page

    with held_locks(services):
        take(listed(1), "admin-list")
        lock = listed()
        lock.get_by_role("link", name="import:7").click()
        lock.locator("#lock-now progress").wait_for()
        take(lock, "admin-lock", full_page=True)
    for name, calls, parked in (("tasks-at-the-limit", 12, 9), ("tasks-later", 0, 3)):
        send_to_supplier(calls, parked)
        page = listed()
        page.get_by_role("link", name="supplier").first.click()
        page.locator("#lock-now").wait_for()
        take(page, name)


def send_to_supplier(calls: int, parked: int) -> None:
    """Send tasks of which three run at once, and wait until ``parked`` of them are parked."""
    from django_redis_lock import locks
    from example_project.shop.tasks import ask_supplier
    from tests.tools import eventually

    for number in range(calls):
        ask_supplier.delay("large" if number < 9 else "small")
    eventually(lambda: len(locks["default"].waiting("supplier")) == parked)


@contextmanager
def held_locks(services: Services) -> Iterator[None]:
    from django_redis_lock import lock, locks
    from django_redis_lock.support.process import current_process
    from tests.tools import Background, eventually, waiters
    from tests.tools.admin import hold_as

    current_process().host = "web-2"  # the waiters'
    with redis.Redis.from_url(services.server.url(1)) as server:
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(1):
                for name, (ttl, *_) in HOLDERS.items():
                    if ttl is not None:
                        server.pexpire(f"lock:{name}", int(ttl * 1000))
                        server.zadd("lock-index", {name: int((time.time() + 10) * 1000)})

        hold_as(server, "import:7", **IMPORT, host="worker-2", pid=3071, task_id="e5b1")
        locks["default"].force_release("import:7", by="grace", reason="no row for an hour")
        for name, (ttl, held_for, host, pid, record) in HOLDERS.items():
            hold_as(server, name, ttl=ttl, held_for=held_for, host=host, pid=pid, **record)
        server.set(f"lock:{FOREIGN}", "set by another program", ex=540)
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


if __name__ == "__main__":
    main()
