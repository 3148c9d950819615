"""Messages that never come to run leave no place in the queue behind."""

from __future__ import annotations

import pytest
from celery import states

from tests.apps.celery.app import WAITING
from tests.apps.celery.brokers import LATER
from tests.brokers.site import Site, value
from tests.tools import eventually
from tests.tools.celery_worker import all_free, held

scopes = pytest.mark.parametrize("scope", WAITING)


def runs_at_once(site: Site, name: str, what: str) -> None:
    """Check that the place is free, and that what is sent now runs."""
    all_free(what)
    assert value(site.task(name).delay(what), 5) == f"ran {what}"
    assert site.ran(what) == ["1"]
    all_free(what)


@scopes
def test_revoked_in_the_hands_of_a_worker(site: Site, scope: str) -> None:
    """The next call takes the place of a message that a worker drops when it is due."""
    what, name = site.name(), f"quick-{scope}"
    result = site.task(name).apply_async((what,), countdown=3600)
    site.logged("received", result.id)
    assert held(what)
    result.revoke()
    eventually(lambda: result.state == states.REVOKED, "the revocation")
    assert value(site.task(name).delay(what), 5) == f"ran {what}"
    assert site.ran(what) == ["1"]
    all_free(what)


@scopes
def test_revoked_before_a_worker_has_it(site: Site, scope: str) -> None:
    """A message revoked in the queue gives up its place when a worker drops it."""
    what, name, queue = site.name(), f"quick-{scope}", f"{LATER}-{scope}"
    result = site.task(name).apply_async((what,), queue=queue)
    result.revoke()
    site.app.control.add_consumer(queue, reply=True)
    try:
        runs_at_once(site, name, what)
    finally:
        site.app.control.cancel_consumer(queue, reply=True)


@scopes
def test_unknown_to_the_worker(site: Site, scope: str) -> None:
    """A message for an unregistered task gives up its place."""
    what = site.name()
    site.task(f"unregistered-{scope}").delay(what)
    all_free(what)
