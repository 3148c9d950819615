"""Messages of an application with old options, run by a worker with new ones."""

from __future__ import annotations

import pytest

from tests.apps.celery.brokers import DEPLOYS, deployed
from tests.brokers.site import Site, value
from tests.tools.celery_worker import all_free


@pytest.mark.parametrize(("old", "new", "change"), DEPLOYS)
def test_a_waiting_message_survives_a_deploy(site: Site, old: str, new: str, change: str) -> None:
    """It runs once, beside no other, and leaves nothing locked."""
    what, name = site.name(), deployed(old, new, change)
    sent = f"{name}-before" if change == "name" else name
    before = site.old_app.tasks[sent].delay(what)
    after = site.task(name).delay(what)
    assert value(before) == f"ran {what}"
    assert value(after) == f"ran {what}"
    ran = site.ran(what)
    assert len(ran) == len({before.id, after.id})
    assert max(ran) <= ("2" if change == "more" else "1")
    all_free(what)
