"""From celery-once and celery-singleton: the first deployment, with both guards on one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery_once import AlreadyQueued, QueueOnce
from celery_singleton import Singleton

from django_redis_lock import locks
from django_redis_lock.celery import single_instance_task
from tests.settings import server_url
from tests.tools.celery_worker import disconnect
from tests.tools.docs import DOCS, blocks

OLD_LOCKS = server_url(9)
NAMES = {QueueOnce: "shop.tasks.import_products", Singleton: "shop.tasks.build_index"}
OPTIONS: dict[Any, Any] = {
    QueueOnce: {"once": {"keys": ["shop_id"]}},
    Singleton: {"unique_on": ["shop_id"]},
}
FOR_ALL: dict[Any, Any] = {QueueOnce: {"once": {}}, Singleton: {}}


@pytest.fixture
def apps(server: object) -> Iterator[list[Celery]]:
    """The project's app in the old code and in the new code; no worker takes their messages."""
    made = [Celery(code, broker=server_url(10), set_as_current=False) for code in ("old", "new")]
    made[0].conf.update(
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": OLD_LOCKS}},
        singleton_backend_url=OLD_LOCKS,
    )
    yield made
    disconnect(*made)
    for app in made:
        app.close()


@pytest.fixture
def bridge(server: object) -> Iterator[dict[str, Any]]:
    """What the page defines; its receiver is connected for as long as that is kept."""
    page = DOCS / "how-to/migrate-to.md"
    (block,) = (block for block in blocks(page) if block.what == "celery")
    defined: dict[str, Any] = {}
    exec(block.text.replace("redis://127.0.0.1:6379/0", OLD_LOCKS), defined)  # noqa: S102
    yield defined
    defined["old_locks"].close()


def refused(send: Callable[[], Any], first: Any) -> bool:
    try:
        return bool(send().id == first.id)
    except AlreadyQueued:
        return True


@pytest.mark.parametrize("base", NAMES)
@pytest.mark.parametrize("by", [OPTIONS, FOR_ALL], ids=["some arguments", "all arguments"])
def test_a_new_worker_frees_what_an_old_sender_locked(
    apps: list[Celery], bridge: dict[str, Any], base: Any, by: dict[Any, Any]
) -> None:
    """Its run has our lock; when it ends both are free, but not before the last attempt."""
    name = NAMES[base]
    if by is FOR_ALL:
        bridge["ONCE" if base is QueueOnce else "SINGLETON"][name] = None

    @apps[0].task(name=name, shared=False, base=base, **by[base])
    def old(shop_id: int, full: bool = False) -> None:
        """Run in the new code only."""

    @apps[1].task(name=name, shared=False, bind=True)
    @single_instance_task(unique_on=["shop_id"], on_conflict="retry")
    def new(self: Any, shop_id: int, full: bool = False) -> list[str]:
        if not self.request.retries:
            raise self.retry(countdown=0)
        assert refused(lambda: old.delay(7, full=True), first)
        return [holder.name for holder in locks["default"].holders()]

    with redis.Redis.from_url(OLD_LOCKS) as old_locks:
        first = old.delay(7, full=True)
        assert new.apply((7,), {"full": True}).get() == [f"{name}:shop_id=7"]
        assert old_locks.keys() == []
