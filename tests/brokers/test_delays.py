"""Delays of less than a second on quorum queues, which RabbitMQ delays by whole seconds."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from django.utils import timezone

from django_redis_lock.celery.key_locks import HEADER
from tests.apps.celery.app import SCOPES
from tests.apps.celery.quorum import ACKNOWLEDGED, BRIEFLY, QUEUE_NAME, make_app
from tests.brokers.conftest import SETTINGS
from tests.brokers.settings import BROKER
from tests.brokers.site import Broker, Site, all_parked, holding, value
from tests.tools import eventually
from tests.tools.celery_worker import Worker, all_free, disconnect, go, running_worker, started

pytestmark = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True, scope="session")


@pytest.fixture(scope="module")
def app(broker: Broker) -> Iterator[Celery]:
    app = make_app(broker.url)
    yield app
    disconnect(app)
    app.close()


@pytest.fixture(scope="module")
def worker(
    broker: Broker, _database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    with running_worker(
        tmp_path_factory.mktemp("worker"),
        *("-n", "quorum@%h"),
        app="tests.brokers.worker:quorum",
        queue=QUEUE_NAME,
        environment={"DJANGO_SETTINGS_MODULE": SETTINGS, BROKER: broker.url},
    ) as worker:
        yield worker


@pytest.mark.parametrize("acknowledged", ACKNOWLEDGED)
def test_a_conflict_comes_again(app: Celery, worker: Worker, site: Site, acknowledged: str) -> None:
    """In a second rather than half of one; it is neither lost nor delivered all the time."""
    what, task = site.name(), app.tasks[f"back-{acknowledged}"]
    first = task.delay(what)
    started(site.client, what)
    second = task.delay(what)
    text = f"[{second.id}] will be retried"
    eventually(lambda: len(worker.lines(text)) >= 2, "two attempts")
    go(site.client, what, times=2)
    assert value(first) == value(second) == {"said": "go", "about": [what, None]}
    assert len(worker.lines(f"[{second.id}] received")) == len(worker.lines(text)) + 1
    assert site.ran(what) == ["1", "1"]
    all_free(what)


SENT: dict[str, Callable[[], dict[str, Any]]] = {
    "countdown": lambda: {"countdown": BRIEFLY},
    "eta": lambda: {"eta": timezone.now() + datetime.timedelta(seconds=BRIEFLY)},
    "eta as text": lambda: {
        "eta": (timezone.now() + datetime.timedelta(seconds=BRIEFLY)).isoformat()
    },
    "one second": lambda: {"eta": timezone.now() + datetime.timedelta(seconds=1)},
    "the past": lambda: {"eta": timezone.now() - datetime.timedelta(seconds=BRIEFLY)},
}


def test_messages_that_are_due_in_half_a_second(app: Celery, worker: Worker, site: Site) -> None:
    """They are sent, and each runs once."""
    what = site.name()
    sent = {
        f"{what}-{how}-{scope}": app.tasks[f"quick-{scope}"].apply_async(
            (f"{what}-{how}-{scope}",), **options()
        )
        for how, options in SENT.items()
        for scope in SCOPES
    }
    for each, result in sent.items():
        assert value(result) == f"ran {each}"
        assert site.ran(each) == ["1"]
    all_free(what)


@pytest.mark.parametrize("countdown", [None, 1])
def test_parked_message_comes_back_as_it_was(
    app: Celery, worker: Worker, site: Site, countdown: int | None
) -> None:
    """Also the one that the broker has delayed, which it does not delay once more."""
    what = site.name()
    with holding(f"parked:{what}"):
        result = app.tasks["parked-quorum"].apply_async((what,), countdown=countdown)
        all_parked([f"parked:{what}"])
    assert value(result) == f"ran {what}"
    first, again = (site.received(result.id, number) for number in (0, 1))
    first["headers"].pop(HEADER, None)
    assert again["headers"].pop(HEADER)["parked"] == 1
    assert again == first
    all_free(what)
