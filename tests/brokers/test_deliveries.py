"""Messages that come again, children that die with a task in hand, and messages that never run."""

from __future__ import annotations

from functools import partial

import pytest

from tests.apps.celery.app import SCOPES
from tests.apps.celery.brokers import STORING
from tests.brokers.site import Site, value
from tests.tools import eventually
from tests.tools.celery_worker import all_free, go, started

LATE = [f"late-{variant}" for variant in STORING]
"""As many tasks as the worker has children, so that what is delivered again comes after them."""


def ended_twice(site: Site, task_id: str) -> bool:
    ends = (f"[{task_id}] succeeded", f"[{task_id}] ignored")
    return sum(len(site.worker.lines(end)) for end in ends) >= 2


def test_a_redelivery_after_the_end_does_not_run(site: Site) -> None:
    """Children that are busy lose their messages to other consumers; each body runs once."""
    about = {site.name(): name for name in LATE}
    results = {what: site.task(name).delay(what) for what, name in about.items()}
    for what in about:
        started(site.client, what)
    site.broker.deliver_again()
    for what in about:
        go(site.client, what, times=2)
    for what, result in results.items():
        site.logged("received", result.id, times=2)
        eventually(partial(ended_twice, site, result.id), "the end of the second delivery")
        assert value(result) == {"said": "go", "about": [what, None]}
    assert {what: site.ran(what) for what in about} == {what: ["1"] for what in about}
    for what in about:
        all_free(what)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_killed_child_s_task_runs_again(site: Site, scope: str) -> None:
    """It is delivered again, takes the lock over, and succeeds."""
    what = site.name()
    result = site.task(f"safe-{scope}").delay(what)
    started(site.client, what)
    go(site.client, what, say="kill")
    started(site.client, what)
    go(site.client, what)
    assert value(result) == f"ran {what}"
    assert site.ran(what) == ["ran", "ran"]
    all_free(what)


@pytest.mark.parametrize("variant", ["json-redis", "pickle-django-db"])
def test_a_task_with_the_id_of_one_that_has_ended_is_not_lost(site: Site, variant: str) -> None:
    """Also when its message is put back; the result of the earlier one is older."""
    what, task = site.name(), site.task(f"late-{variant}")
    earlier = task.apply_async((what,), task_id=f"job-{what}")
    go(site.client, what)
    value(earlier)
    task.apply_async((what,), task_id=earlier.id, countdown=1)
    site.logged("received", earlier.id, times=2)
    site.broker.deliver_again()
    site.logged("received", earlier.id, times=3)
    for _ in range(2):
        started(site.client, what)
    go(site.client, what, times=2)
    all_free(what)
    assert site.ran(what) == ["1", "1"]
