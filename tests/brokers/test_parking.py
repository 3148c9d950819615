"""Parked messages come back as they were sent, and tasks end as if nothing had happened."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import chain, states
from django.utils import timezone

from django_redis_lock import locks
from django_redis_lock.celery.key_locks import HEADER
from django_redis_lock.celery.outbox import PARKED
from tests.apps.celery.brokers import SERIALIZERS
from tests.brokers.site import Site, all_parked, holding, value
from tests.tools import eventually
from tests.tools.celery_worker import all_free

BACKEND_OF = {"json": "redis", "pickle": "django-db", "msgpack": "none", "yaml": "cache"}
QUEUE, EXCHANGE = "parked-elsewhere", "parked-by-name"
"""A queue that is bound to an exchange with a name."""

# What a message may have: options of apply_async.
MESSAGES: dict[str, Callable[[Site], dict[str, Any]]] = {
    "nothing": lambda site: {},
    "arguments": lambda site: {"kwargs": {"text": "ü\u2028", "deep": {"a": [1, None, 2.5]}}},
    "headers": lambda site: {"headers": {"tenant": "é", "traceparent": "00-abc-def-01"}},
    "priority": lambda site: {"priority": 7},
    "expires": lambda site: {"expires": 3600},
    "eta": lambda site: {"countdown": 0.3},
    "eta in the past": lambda site: {"eta": timezone.now() - datetime.timedelta(hours=1)},
    "retries": lambda site: {"retries": 2},
    "limits": lambda site: {"time_limit": 50, "soft_time_limit": 40},
    "reply": lambda site: {"reply_to": "somebody", "correlation_id": "a letter"},
    "links": lambda site: {"link": quick(site), "link_error": quick(site)},
    "chain": lambda site: {"chain": [quick(site)]},
    "chord": lambda site: {"chord": quick(site), "group_id": site.name(), "group_index": 3},
    "canvas": lambda site: {"root_id": "a root", "parent_id": "a parent", "group_id": "a group"},
    "stamps": lambda site: {"stamped_headers": ["who", "what"], "who": ["me"], "what": "this"},
    "looks": lambda site: {"shadow": "seen as", "argsrepr": "hidden", "kwargsrepr": "hidden"},
    "no result": lambda site: {"ignore_result": True},
    "transient": lambda site: {"delivery_mode": 1},
    "compressed": lambda site: {"compression": "zlib"},
    "exchange": lambda site: {"exchange": EXCHANGE, "routing_key": "parked.here"},
}

SIGNATURES = ("links", "chain", "chord")


def quick(site: Site) -> Any:
    return site.task("quick-run").si(site.name())


@pytest.fixture
def elsewhere(site: Site) -> Iterator[None]:
    """The worker consumes another queue as well. Each command has a connection of its own: other
    tests cut those that Celery keeps in its pool."""
    options = {"exchange": EXCHANGE, "exchange_type": "direct", "routing_key": "parked.here"}
    with site.app.connection_for_write() as connection:
        site.app.control.add_consumer(QUEUE, **options, reply=True, connection=connection)
    yield
    with site.app.connection_for_write() as connection:
        site.app.control.cancel_consumer(QUEUE, reply=True, connection=connection)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_message_comes_back_as_it_was(site: Site, elsewhere: None, serializer: str) -> None:
    """Only the guard's own header differs; see ``MESSAGES``."""
    name = f"parked-{serializer}-{BACKEND_OF[serializer]}"
    # Celery itself can't send those that YAML does not know.
    rows = [what for what in MESSAGES if serializer != "yaml" or what not in SIGNATURES]
    names = {what: site.name() for what in rows}
    keys = {what: f"{name}:{names[what]}" for what in rows}
    sent = {}
    with ExitStack() as stack:
        for what in rows:
            stack.enter_context(holding(keys[what]))
            options = {"args": [names[what]], **MESSAGES[what](site)}
            sent[what] = site.task(name).apply_async(**options)
        all_parked([*keys.values()])
        if BACKEND_OF[serializer] != "none":
            assert sent["arguments"].state == PARKED
            assert sent["arguments"].info == {"key": keys["arguments"], "position": 1}
    for what, result in sent.items():
        first, again = (site.received(result.id, number) for number in (0, 1))
        first["headers"].pop(HEADER, None)
        assert again["headers"].pop(HEADER)["parked"] == 1
        assert again == first, what
        site.logged("succeeded", result.id)
        assert site.ran(names[what]) == ["1"], what
        if BACKEND_OF[serializer] != "none" and what != "no result":
            assert value(result) == f"ran {names[what]}"
    all_free(name)


def test_canvas_goes_on_after_a_parked_task(site: Site) -> None:
    what, task = site.name(), site.task("parked-json-redis")
    with holding(f"parked-json-redis:{what}"):
        result = chain(task.si(what), quick(site)).apply_async()
        all_parked([f"parked-json-redis:{what}"])
    assert value(result).startswith("ran ")
    assert value(result.parent) == f"ran {what}"


def test_retry_of_a_parked_task(site: Site) -> None:
    """It is a message of its own, parked anew if there is no room."""
    what = site.name()
    with holding(f"parked-again:{what}"):
        result = site.task("parked-again").delay(what)
        all_parked([f"parked-again:{what}"])
    assert value(result) == [what, 1]
    assert site.ran(what) == ["1", "1"]
    all_free(what)


def test_expired_task_gives_its_place_to_the_next(site: Site) -> None:
    what, task = site.name(), site.task("parked-json-redis")
    key = f"parked-json-redis:{what}"
    with holding(key):
        expired = task.apply_async((what,), expires=1)
        all_parked([key])
        following = task.delay(what)
        eventually(lambda: len(locks["default"].waiting(key)) == 2, "both are parked")
        at = timezone.now() + datetime.timedelta(seconds=1)
        eventually(lambda: timezone.now() > at, "it has expired")
    eventually(lambda: expired.state == states.REVOKED, "the revocation")
    assert value(following) == f"ran {what}"
    assert site.ran(what) == ["1"]
    all_free(what)
