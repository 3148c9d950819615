"""A browser, somebody who is logged in, and locks to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from playwright.sync_api import Browser, expect, sync_playwright

from django_redis_lock import Lock, lock
from django_redis_lock.models import HeldLock
from example_project.embedded import EmbeddedServer
from tests.browser.chromium import chromium_path
from tests.browser.window import Visitor
from tests.tools import PATIENCE

# Playwright keeps an event loop in the thread of the tests, which Django would take for async code.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path())
        yield browser
        browser.close()


@pytest.fixture
def visit(
    request: pytest.FixtureRequest, chromium: Browser, live_server: Any, server: EmbeddedServer
) -> Iterator[Callable[..., Visitor]]:
    """Return a window for a user with the given permissions, a superuser without any. The test
    fails if a script failed or the content security policy was broken. Windows are closed before
    any fixture is undone: their pages would go on asking."""
    visitors: list[Visitor] = []

    def visitor(permissions: list[str] | None = None, **options: Any) -> Visitor:
        users = get_user_model().objects
        if permissions is None:
            user = users.create_superuser(f"root-{len(visitors)}")
        else:
            user = users.create_user(f"staff-{len(visitors)}", is_staff=True)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        context = chromium.new_context(**options)
        request.node.addfinalizer(context.close)
        cookie = client.cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])
        visitors.append(Visitor(context, live_server.url))
        return visitors[-1]

    yield visitor
    assert [each.complaints for each in visitors] == [[]] * len(visitors)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages refresh as often as they can."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", 0.1)


@pytest.fixture
def hold() -> Iterator[Callable[..., Lock]]:
    """Take locks that are released after the test, if they still are held."""
    taken: list[Lock] = []

    def take(name: str, *args: Any, **options: Any) -> Lock:
        held = lock(name, *args, **options)
        assert held.acquire(blocking=False)
        taken.append(held)
        return held

    yield take
    for held in taken:
        if held.owned():
            held.release()
