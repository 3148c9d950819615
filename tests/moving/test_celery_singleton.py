"""From celery-singleton: what each of its options becomes, with both guards on one broker."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery
from celery_singleton import DuplicateTaskError, Singleton, clear_locks
from celery_singleton.backends import RedisBackend
from celery_singleton.config import Config
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from tests.apps.celery.backend import ToldLockBackend
from tests.apps.moving.new import bridges
from tests.moving.rows import Rows
from tests.settings import server_url
from tests.tools.console import command

rows = Rows("move-from-celery-singleton.md")


def old(app: Celery, **options: Any) -> Any:
    @app.task(**{"name": "shop.old", "shared": False, "base": Singleton, **options})
    def task(shop_id: int, full: bool = False) -> str:
        return "done"

    return task


def ours(app: Celery, **options: Any) -> Any:
    @app.task(name="shop.ours", shared=False)
    @single_instance_task(**{"scope": "queue_and_run", "unique_on": "all", **options})
    def task(shop_id: int, full: bool = False) -> str:
        return "done"

    return task


def held() -> list[str]:
    return [holder.name for holder in locks["default"].holders()]


def test_each_row_has_a_test() -> None:
    """And no option of the old guard is without a row."""
    assert rows.shown == rows.documented
    settings = [name for name, value in vars(Config).items() if isinstance(value, property)]
    options = [name for name in vars(Singleton) if name in ("unique_on", "lock_expiry")]
    overridden = ["on_duplicate", "generate_lock", "release_lock", "raise_on_duplicate"]
    assert all(hasattr(Singleton, name) for name in overridden)
    assert rows.lack(*(f"singleton_{name}" for name in settings), *options, *overridden) == []


@rows.show("base=Singleton", '@single_instance_task(scope="queue_and_run", unique_on="all")')
def test_one_from_sending_to_its_end(app: Celery, old_locks: redis.Redis) -> None:
    """A duplicate returns the result of the one that is there. Ours knows all forms of a call."""
    before, after = old(app), ours(app)
    for task in (before, after):
        first = task.delay(7)
        assert task.delay(7).id == first.id != task.delay(8).id
    assert len(old_locks.keys("SINGLETONLOCK_*")) == len(held()) == 2
    assert before.delay(shop_id=7).id != before.delay(7).id
    assert after.delay(shop_id=7).id == after.delay(7).id


@rows.show('unique_on="shop_id", unique_on=["shop_id"]', 'unique_on=["shop_id"]')
def test_some_arguments_tell_calls_apart(app: Celery) -> None:
    for task in (old(app, unique_on="shop_id"), ours(app, unique_on=["shop_id"])):
        assert task.delay(7).id == task.delay(7, full=True).id
    with pytest.raises(ValueError, match=r"must be a list of arguments, such as \['shop_id'\]"):
        ours(app, unique_on="shop_id")


@rows.show("raise_on_duplicate=True", 'on_conflict={"queue": "raise"}')
def test_a_duplicate_that_raises(app: Celery) -> None:
    for task, error in (
        (old(app, raise_on_duplicate=True), DuplicateTaskError),
        (ours(app, on_conflict={"queue": "raise"}), TaskAlreadyRunning),
    ):
        task.delay(7)
        with pytest.raises(error):
            task.delay(7)


@rows.show("singleton_raise_on_duplicate", "on_conflict in SINGLE_INSTANCE_TASK")
def test_a_default_of_the_project(app: Celery) -> None:
    app.conf.singleton_raise_on_duplicate = True
    before = old(app)
    before.delay(7)
    with pytest.raises(DuplicateTaskError):
        before.delay(7)
    with override_settings(SINGLE_INSTANCE_TASK={"on_conflict": {"queue": "raise"}}):
        after = ours(app)
        after.delay(7)
        with pytest.raises(TaskAlreadyRunning):
            after.delay(7)


@rows.show("lock_expiry=600, singleton_lock_expiry", "queue_timeout=600; a run renews its lease")
def test_how_long_a_message_may_wait(app: Celery, old_locks: redis.Redis) -> None:
    """Without it theirs never ends, and ours after an hour."""
    old(app).delay(7)
    (key,) = old_locks.keys()
    assert old_locks.ttl(key) == -1
    old(app, name="shop.other", lock_expiry=600).delay(7)
    assert any(590 < old_locks.ttl(key) <= 600 for key in old_locks.scan_iter())
    ours(app, queue_timeout=600).delay(7)
    (holder,) = locks["default"].holders()
    assert 590 < holder.ttl <= 600
    assert holder.metadata["state"] == "queued"


@rows.show("singleton_backend_url, singleton_backend_kwargs", "LOCATION in LOCKS")
def test_the_server_is_that_of_the_settings(app: Celery, old_locks: redis.Redis) -> None:
    old(app).delay(7)
    ours(app, using="url").delay(7)
    assert old_locks.keys("SINGLETONLOCK_*")
    assert [holder.name for holder in locks["url"].holders()] == ["shop.ours:shop_id=7,full=false"]


@rows.show("singleton_key_prefix", "KEY_PREFIX in LOCKS")
def test_the_prefix_of_the_keys(app: Celery, old_locks: redis.Redis) -> None:
    app.conf.singleton_key_prefix = "once:"
    old(app).delay(7)
    assert [key[:5] for key in old_locks.scan_iter()] == ["once:"]
    ours(app, using="url").delay(7)
    with redis.Redis.from_url(server_url(1)) as client:
        assert client.exists("by-url-index")


@rows.show("singleton_backend_class", "BACKEND in LOCKS")
def test_a_backend_of_ones_own(app: Celery, settings: Any) -> None:
    assert Config(app).backend_class is RedisBackend
    path = "tests.apps.celery.backend.ToldLockBackend"
    settings.LOCKS = {"default": {"BACKEND": path, "LOCATION": "locks"}}
    ours(app).delay(7)
    assert isinstance(locks["default"], ToldLockBackend)
    assert len(held()) == 1


@rows.show("DuplicateTaskError, its task_id", 'TaskAlreadyRunning, its holder["task_id"]')
def test_what_the_error_tells(app: Celery) -> None:
    before = old(app, raise_on_duplicate=True)
    first = before.delay(7)
    with pytest.raises(DuplicateTaskError) as theirs:
        before.delay(7)
    assert theirs.value.task_id == first.id
    after = ours(app, on_conflict={"queue": "raise"})
    first = after.delay(7)
    with pytest.raises(TaskAlreadyRunning) as caught:
        after.delay(7)
    assert caught.value.holder is not None
    assert caught.value.holder["task_id"] == first.id


@rows.show("on_duplicate() of a subclass", "a function as on_conflict")
def test_a_duplicate_is_decided_by_a_function(app: Celery) -> None:
    class Own(Singleton):
        abstract = True

        def on_duplicate(self, existing_task_id: str) -> str:
            return f"behind {existing_task_id}"

    before = old(app, base=Own)
    after = ours(app, on_conflict=lambda conflict: f"behind {conflict.holder.task_id}")
    for task in (before, after):
        first = task.delay(7)
        assert task.delay(7) == f"behind {first.id}"


@rows.show("generate_lock() of a subclass", "a function or a template as key")
def test_a_key_of_ones_own(app: Celery, old_locks: redis.Redis) -> None:
    class Own(Singleton):
        abstract = True

        def generate_lock(self, task_name: str, *args: Any, **kwargs: Any) -> str:
            return "shop"

    old(app, base=Own).delay(7)
    ours(app, unique_on=None, key="shop:{shop_id}").delay(7)
    assert old_locks.keys() == ["shop"]
    assert held() == ["shop:7"]


@rows.show("task.release_lock(args, kwargs)", 'locks["default"].force_release(name)')
def test_a_lock_is_released(app: Celery, old_locks: redis.Redis) -> None:
    before, after = old(app), ours(app)
    before.delay(7)
    before.release_lock([7])
    assert old_locks.keys() == []
    after.delay(7)
    assert locks["default"].force_release(*held()) is not None
    assert held() == []


@pytest.mark.usefixtures("db", "no_workers")
@rows.show(
    "clear_locks(app) at the start of a worker",
    "nothing; manage.py locks release NAME after a purge",
)
def test_what_a_purge_left(app: Celery, old_locks: redis.Redis, settings: Any) -> None:
    """Theirs frees the locks of all that waits and runs; ours only what is named."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    old(app).delay(7)
    ours(app).delay(7)
    with lock("runs"):
        clear_locks(app)
        (place,) = {*held()} - {"runs"}
        command("release", place, "--noinput")
        assert old_locks.keys() == []
        assert len(held()) == 1


def test_the_bridge_frees_what_was_locked(app: Celery, old_locks: redis.Redis) -> None:
    """By some arguments or by all; and not before the last attempt has ended."""
    _, bridge = bridges()
    for number, names in enumerate((["shop_id"], None)):
        before = old(app, name=f"shop.{number}", unique_on=names)
        bridge["UNIQUE_ON"] = {before.name: names}
        before.delay(7, full=True)
        call = {"sender": before, "args": [7], "kwargs": {"full": True}}
        bridge["free_what_the_sender_locked"](state="RETRY", **call)
        assert len(old_locks.keys()) == 1
        bridge["free_what_the_sender_locked"](state="FAILURE", **call)
        assert old_locks.keys() == []
