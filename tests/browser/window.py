"""A browser window, and what the tests look for in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, Request

from django_redis_lock import Lock
from django_redis_lock.admin import HEADER as LIVE_HEADER
from tests.tools.admin import LIST


class Visitor:
    """Somebody with a browser window, in which nothing may go wrong."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = base
        self.context = context
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str = LIST) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def count_refreshes(self) -> list[str]:
        """Return a list that grows by an entry with each refresh that the script asks for."""
        seen: list[str] = []

        def note(request: Request) -> None:
            if LIVE_HEADER.lower() in request.headers:
                seen.append(request.url)

        self.page.on("request", note)
        return seen


Visit = Callable[..., Visitor]
Hold = Callable[..., Lock]


def row(page: Page, name: str) -> Locator:
    cell = page.locator(".field-lock").get_by_text(name, exact=True)
    return page.locator("#result_list tbody tr").filter(has=cell)


def box(page: Page, name: str) -> Locator:
    return row(page, name).locator("input.action-select")


def choose_release(page: Page, *names: str) -> None:
    for name in names:
        box(page, name).check()
    page.locator("select[name=action]").select_option("release_locks")
    page.locator("button[name=index]").click()
