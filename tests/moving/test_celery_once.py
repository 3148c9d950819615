"""From celery-once: what each of its options becomes, with both guards on one broker."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import redis
from celery import Celery
from celery_once import AlreadyQueued, QueueOnce
from celery_once.backends.redis import Redis as OldBackend

from django_redis_lock import lock, locks
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from tests.apps.moving.new import bridges
from tests.moving.rows import Rows

rows = Rows("move-from-celery-once.md")


def old(app: Celery, **once: Any) -> Any:
    @app.task(name="shop.old", shared=False, base=QueueOnce, once=once)
    def task(shop_id: int, full: bool = False) -> str:
        return "done"

    return task


def ours(app: Celery, **options: Any) -> Any:
    @app.task(name="shop.ours", shared=False)
    @single_instance_task(**{"scope": "queue_and_run", "unique_on": "all", **options})
    def task(shop_id: int, full: bool = False) -> str:
        return "done"

    return task


def test_each_row_has_a_test() -> None:
    """And no option of the old guard is without a row."""
    assert rows.shown == rows.documented
    source = inspect.getsource(inspect.getmodule(QueueOnce))  # type: ignore[arg-type]
    options = ["keys", "graceful", "timeout", "unlock_before_run"]
    assert all(f"'{option}'" in source for option in options)
    assert rows.lack(*options, "default_timeout", "blocking", "url", "countdown", "get_key") == []


@rows.show(
    "base=QueueOnce",
    '@single_instance_task(scope="queue_and_run", unique_on="all", on_conflict={"queue": "raise"})',
)
def test_one_from_sending_to_its_end(app: Celery, old_locks: redis.Redis) -> None:
    """All arguments tell calls apart, and a duplicate raises in the sender."""
    before, after = old(app), ours(app, on_conflict={"queue": "raise"})
    for task, error in ((before, AlreadyQueued), (after, TaskAlreadyRunning)):
        task.delay(7)
        task.delay(8)
        with pytest.raises(error):
            task.delay(shop_id=7)
    assert len(old_locks.keys("qo_*")) == 2


@rows.show('once={"keys": ["shop_id"]}', 'unique_on=["shop_id"]')
def test_some_arguments_tell_calls_apart(app: Celery) -> None:
    before, after = old(app, keys=["shop_id"]), ours(app, unique_on=["shop_id"])
    before.delay(7)
    with pytest.raises(AlreadyQueued):
        before.delay(7, full=True)
    assert after.delay(7).id == after.delay(7, full=True).id


@rows.show('once={"keys": []}', "leave unique_on out")
def test_all_calls_are_one(app: Celery) -> None:
    before, after = old(app, keys=[]), ours(app, unique_on=None)
    before.delay(7)
    with pytest.raises(AlreadyQueued):
        before.delay(8)
    assert after.delay(7).id == after.delay(8).id


@rows.show(
    'once={"graceful": True}: an EagerResult, REJECTED',
    'on_conflict="skip", the default: the AsyncResult of the other',
)
def test_a_quiet_duplicate(app: Celery) -> None:
    before, after = old(app, graceful=True), ours(app)
    before.delay(7)
    duplicate = before.delay(7)
    assert (duplicate.id, duplicate.state) == (None, "REJECTED")
    first = after.delay(7)
    assert after.delay(7).id == first.id


@rows.show('once={"unlock_before_run": True}', 'scope="queue": besides, one runs at a time')
def test_one_waits_and_one_runs(app: Celery, old_locks: redis.Redis) -> None:
    """Theirs has no lock while it runs; with ours the run has one of its own."""
    seen = []

    @app.task(name="shop.old", base=QueueOnce, shared=False, once={"unlock_before_run": True})
    def before() -> None:
        seen.append(old_locks.keys("qo_*"))

    @app.task(name="shop.ours", shared=False)
    @single_instance_task(scope="queue")
    def after() -> None:
        seen.append([holder.name for holder in locks["default"].holders()])

    before.delay()
    before()
    after()
    assert seen == [[], ["shop.ours"]]
    after.delay()
    assert [holder.name for holder in locks["default"].holders()] == ["shop.ours~~queued:shop.ours"]


@rows.show('once={"timeout": 600}, default_timeout', "queue_timeout=600; a run renews its lease")
def test_how_long_a_message_may_wait(app: Celery, old_locks: redis.Redis) -> None:
    """Theirs ends in the midst of a long run, and then a second one is sent."""
    before, after = old(app, timeout=600), ours(app, queue_timeout=600)
    before.delay(7)
    after.delay(7)
    (key,) = old_locks.keys("qo_*")
    (holder,) = locks["default"].holders()
    assert 590 < old_locks.ttl(key) <= 600
    assert 590 < holder.ttl <= 600
    assert holder.metadata["state"] == "queued"


@rows.show('ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": …}}', "LOCKS")
def test_the_server_is_that_of_the_settings(app: Celery, old_locks: redis.Redis) -> None:
    old(app).delay(7)
    ours(app, using="url").delay(7)
    assert old_locks.keys("qo_*")
    assert len(list(locks["url"].holders())) == 1


@rows.show(
    '"blocking": True, "blocking_timeout": 5: the sender waits',
    'on_conflict={"run": "wait"}, blocking_timeout=5: the worker waits',
)
def test_a_duplicate_that_waits(app: Celery) -> None:
    """A sender of ours is answered at once."""
    app.conf.ONCE["settings"] |= {"blocking": True, "blocking_timeout": 0.2}
    assert OldBackend(app.conf.ONCE["settings"]).blocking_timeout == 0.2
    before = old(app)
    before.delay(7)
    with pytest.raises(AlreadyQueued):
        before.delay(7)
    after = ours(app, scope="run", unique_on=["shop_id"], on_conflict="wait", blocking_timeout=0.05)
    with lock("shop.ours:shop_id=7"), pytest.raises(TaskAlreadyRunning):
        after(7)


@rows.show('apply_async(…, once={"graceful": True})', "apply_async(…, single_instance={…})")
def test_options_of_one_call(app: Celery) -> None:
    """The old argument is refused, as it would be ignored."""
    before, after = old(app), ours(app, on_conflict={"queue": "raise"})
    before.delay(7)
    assert before.apply_async((7,), once={"graceful": True}).state == "REJECTED"
    first = after.delay(7)
    assert after.apply_async((7,), single_instance={"on_conflict": "skip"}).id == first.id
    with pytest.raises(TypeError, match="argument of celery-once"):
        after.apply_async((8,), once={"graceful": True})


@rows.show("AlreadyQueued, its countdown", "TaskAlreadyRunning, its ttl and holder")
def test_what_the_error_tells(app: Celery) -> None:
    before, after = old(app), ours(app, on_conflict={"queue": "raise"})
    before.delay(7)
    with pytest.raises(AlreadyQueued) as theirs:
        before.delay(7)
    assert 3590 < theirs.value.countdown <= 3600
    first = after.delay(7)
    with pytest.raises(TaskAlreadyRunning) as caught:
        after.delay(7)
    assert caught.value.ttl is not None
    assert 3590 < caught.value.ttl <= 3600
    assert caught.value.holder is not None
    assert caught.value.holder["task_id"] == first.id


@rows.show(
    "once_backend.clear_lock(task.get_key(args, kwargs))", 'locks["default"].force_release(name)'
)
def test_a_lock_is_cleared(app: Celery, old_locks: redis.Redis) -> None:
    before, after = old(app), ours(app)
    before.delay(7)
    first = after.delay(7)
    before.once_backend.clear_lock(before.get_key((7,), {}))
    assert old_locks.keys("qo_*") == []
    (holder,) = locks["default"].holders()
    assert locks["default"].force_release(holder.name) is not None
    assert after.delay(7).id != first.id


def test_the_bridge_frees_what_was_locked(app: Celery, old_locks: redis.Redis) -> None:
    """By some arguments or by all; and not before the last attempt has ended."""
    bridge, _ = bridges()
    for keys, once in ((["shop_id"], {"keys": ["shop_id"]}), (None, {})):
        bridge["OLD_KEYS"] = {f"shop.{len(once)}": keys}
        before = app.task(name=f"shop.{len(once)}", shared=False, base=QueueOnce, once=once)(work)
        before.delay(7, full=True)
        call = {"sender": before, "args": [7], "kwargs": {"full": True}}
        bridge["free_what_the_sender_locked"](state="RETRY", **call)
        assert len(old_locks.keys("qo_*")) == 1
        bridge["free_what_the_sender_locked"](state="FAILURE", **call)
        assert old_locks.keys("qo_*") == []


def work(shop_id: int, full: bool = False) -> None:
    """Have nothing to do for a shop."""
