"""Runs that go on under another key, and tasks that share one."""

from __future__ import annotations

import itertools

import pytest

from tests.apps.celery.app import SCOPES
from tests.brokers.site import Site, holder, value
from tests.tools.celery_worker import all_free, go, started

ways = pytest.mark.parametrize("how", ["retry", "replace"])
scopes = pytest.mark.parametrize("scope", SCOPES)


@ways
@scopes
def test_a_run_goes_on_under_another_key(site: Site, scope: str, how: str) -> None:
    """The next attempt holds the lock of the new key only; in the end both are free."""
    what, to, name = site.name(), site.name(), f"moving-{scope}"
    result = site.task(name).delay(what, to, how)
    started(site.client, what)
    go(site.client, what)
    started(site.client, to)
    assert holder(f"{name}:{to}").task_id == result.id
    all_free(what)
    go(site.client, to)
    assert value(result) == f"ran {to}"
    all_free(to)


@pytest.mark.parametrize(("old", "new"), [*itertools.product(SCOPES, SCOPES)])
def test_a_task_is_replaced_by_another_of_its_key(site: Site, old: str, new: str) -> None:
    """The replacement runs once, and its result is the result."""
    what = site.name()
    result = site.task(f"replacing-{old}").delay(what, f"replacement-{new}")
    assert value(result) == f"ran {what}"
    assert site.ran(what) == ["1"]
    all_free(what)
