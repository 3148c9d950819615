"""What one call is told, what all tasks are told, and what a duplicate's result looks like."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import TaskRevokedError
from celery.schedules import schedule
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock import lock, locks
from django_redis_lock.celery import Conflict, TaskAlreadyRunning, single_instance_task
from django_redis_lock.celery.options import Options
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.apps.celery import calls as tasks
from tests.apps.celery.app import NOWHERE
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, free
from tests.tools.proxy import Proxy

SERIALIZERS = tasks.SERIALIZERS


@pytest.fixture
def local_app() -> Iterator[Celery]:
    """An app of the test's own, which no worker serves."""
    own = Celery("local", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield own
    own.close()


def work() -> str:
    """Have nothing to do."""
    return "ran"


def by_shop(shop_id: int = 1) -> None:
    """Have nothing to do for a shop."""


# Results.


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_skipped_duplicate_is_a_plain_dict(worker: Worker, serializer: str) -> None:
    """Every result serializer takes it, and gives a dict back."""
    task = tasks.skipping[serializer]
    with lock(task.name, timeout=30):
        result = task.delay().get(timeout=WAIT)
    assert type(result) is dict
    assert result["skipped"] is True
    assert type(result["holder"]) is dict
    assert 0 < result["holder"]["ttl"] <= 30


def test_a_direct_call_returns_a_plain_dict(local_app: Celery, name: str) -> None:
    """Also where nothing is serialized."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(work))
    with lock(name, using="locmem"):
        assert type(task()) is dict


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_refusal_survives_the_serializer(worker: Worker, serializer: str) -> None:
    """It comes back as itself, with the seconds left of the holder's lease."""
    task = tasks.raising[serializer]
    with lock(task.name, timeout=30), pytest.raises(TaskAlreadyRunning) as caught:
        task.delay().get(timeout=WAIT)
    error = caught.value
    assert error.name == task.name
    assert f"lock '{task.name}' is held by" in str(error)
    assert error.holder is not None
    assert 0 < error.holder["ttl"] == error.ttl <= 30


def test_a_lease_without_end_has_no_seconds_left(local_app: Celery, name: str) -> None:
    """``ttl`` is ``None``, as it is if the holder is unknown."""
    guard = single_instance_task(using="locmem", on_conflict="raise")
    task = local_app.task(name=name, shared=False)(guard(work))
    with lock(name, None, using="locmem"), pytest.raises(TaskAlreadyRunning) as caught:
        task()
    assert caught.value.ttl is None
    assert TaskAlreadyRunning("nobody").ttl is None


def test_the_seconds_left_at_sending_are_not_those_of_the_answer() -> None:
    """A duplicate that waited for its turn does not tell an old time."""
    described = {"task_id": "1", "task_name": "a", "host": "h", "pid": 1, "since": None, "ttl": 9.0}
    conflict = Conflict("run", None, "2", "key", None, (), {}, when_sent=described)
    assert conflict.described == {**described, "ttl": None}


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_an_ignored_duplicate_has_a_result(worker: Worker, serializer: str) -> None:
    """Whoever waits for it is told at once, rather than never."""
    task = tasks.ignoring[serializer]
    with lock(task.name, timeout=30), pytest.raises(TaskRevokedError, match="ignored"):
        task.delay().get(timeout=WAIT)


def test_a_refusal_is_no_failure_in_the_log(worker: Worker) -> None:
    """Celery logs it as expected: a line at level INFO, without a traceback."""
    task = tasks.raising["json"]
    with lock(task.name, timeout=30):
        duplicate = task.delay()
        with pytest.raises(TaskAlreadyRunning):
            duplicate.get(timeout=WAIT)
    (line,) = eventually(lambda: worker.lines(f"[{duplicate.id}] raised"))
    assert "raised expected: TaskAlreadyRunning" in line
    assert "INFO" in line


@pytest.mark.parametrize(
    "own", [(), (KeyError,), [KeyError, ValueError], KeyError, (TaskAlreadyRunning,)]
)
def test_the_tasks_own_expected_errors_stay(local_app: Celery, name: str, own: Any) -> None:
    """``throws`` has what the task says and ``TaskAlreadyRunning``."""
    task = local_app.task(name=name, throws=own)(single_instance_task(work))
    before = own if isinstance(own, tuple | list) else (own,)
    assert isinstance(TaskAlreadyRunning("no"), task.throws)
    assert set(task.throws) == {*before, TaskAlreadyRunning}


# One call.


def test_a_call_has_its_own_policy(worker: Worker) -> None:
    """The run does about the conflict what this call says."""
    with lock("telling", timeout=30):
        assert tasks.telling.delay().get(timeout=WAIT)["skipped"]
        refused = tasks.telling.apply_async(single_instance={"on_conflict": "raise"})
        with pytest.raises(TaskAlreadyRunning):
            refused.get(timeout=WAIT)


def test_a_call_has_its_own_key(worker: Worker, name: str) -> None:
    """The run takes the lock that this call names."""
    with lock("telling", timeout=30):
        told = tasks.telling.apply_async(single_instance={"key": name})
        assert told.get(timeout=WAIT) == [name]
    told = tasks.telling.apply_async((7,), single_instance={"key": name + ":{items[0]}"})
    assert told.get(timeout=WAIT) == [7, f"{name}:7"]
    told = tasks.telling.apply_async((7,), single_instance={"unique_on": {"items"}})
    assert told.get(timeout=WAIT) == [7, "telling:items=[7]"]


def test_what_a_call_is_told_goes_along_with_retries(worker: Worker, name: str) -> None:
    """Each attempt has the key of the call, and the last one frees it."""
    told = tasks.retried.apply_async(single_instance={"key": name})
    assert told.get(timeout=WAIT) == [2, name]
    free(name)


@pytest.mark.parametrize("task", [tasks.telling, tasks.waiting], ids=["run", "queue"])
def test_what_a_call_is_told_goes_along_when_it_comes_again(
    worker: Worker, name: str, task: Any
) -> None:
    """A message that goes back to the queue keeps what it was told."""
    told = {"key": name, "on_conflict": {"run": "retry"}, "countdown": 0.1}
    with lock(name, timeout=30):
        result = task.apply_async(single_instance=told)
        eventually(lambda: len(worker.lines(f"[{result.id}] comes again")) >= 2)
    assert result.get(timeout=WAIT)[-1] == name
    free(name)
    free(f"{name}~~queued:{task.name}")


def test_what_a_call_is_told_counts_when_it_is_sent(worker: Worker, name: str) -> None:
    """The place in the queue is that of its key, and of its scope."""
    told = {"key": name}
    with lock(f"{name}~~queued:{tasks.waiting.name}", timeout=30) as place:
        sent = tasks.waiting.apply_async(single_instance=told, task_id=f"{name}-1")
        assert sent.get(timeout=WAIT)["key"] == name
        sent = tasks.waiting.apply_async((2,), single_instance={**told, "scope": "run"})
        assert sent.get(timeout=WAIT) == [2, name]
        assert place.owned()
    first = tasks.waiting.apply_async(single_instance=told, queue=NOWHERE)
    with pytest.raises(TaskAlreadyRunning) as caught:
        tasks.waiting.apply_async(single_instance={**told, "on_conflict": "raise"})
    assert caught.value.holder is not None
    assert caught.value.holder["task_id"] == first.id
    locks["default"].force_release(f"{name}~~queued:{tasks.waiting.name}")


def test_what_calls_are_told_passes_through_canvas(worker: Worker, name: str) -> None:
    """Signatures carry it, into chains, groups and chords."""

    def told(number: int) -> Any:
        return tasks.telling.s().set(single_instance={"key": f"{name}:{number}"})

    with lock("telling", timeout=30):
        assert chain(told(1), told(2))().get(timeout=WAIT) == [[f"{name}:1"], f"{name}:2"]
        members = group(told(3), told(4))()
        assert members.get(timeout=WAIT) == [[f"{name}:3"], [f"{name}:4"]]
        ended = chord([told(5), told(6)])(tasks.gather.s())
        assert ended.get(timeout=WAIT) == [[f"{name}:5"], [f"{name}:6"]]
        body = chord([told(7), told(8)])(told(9))
        assert body.get(timeout=WAIT) == [[[f"{name}:7"], [f"{name}:8"]], f"{name}:9"]


@pytest.mark.parametrize("eagerly", ["apply", "always eager", "signature", "retried"])
def test_what_a_call_is_told_counts_in_eager_calls(
    local_app: Celery, name: str, eagerly: str
) -> None:
    """As it does in a worker."""

    @local_app.task(name=name, shared=False, bind=True, max_retries=1)
    @single_instance_task(using="locmem")
    def task(self: Any) -> list[Any]:
        if eagerly == "retried" and not self.request.retries:
            raise self.retry(countdown=0)
        return [single_instance_task.current().name, self.request.retries]

    told = {"key": f"{name}:told"}
    if eagerly == "always eager":
        local_app.conf.task_always_eager = True
        result = task.apply_async(single_instance=told)
    elif eagerly == "signature":
        result = task.s().set(single_instance=told).apply()
    else:
        result = task.apply(single_instance=told)
    assert result.get() == [f"{name}:told", int(eagerly == "retried")]
    assert task.apply().get()[0] == name


def test_what_a_call_is_told_is_not_said_to_celery(local_app: Celery, name: str) -> None:
    """It is in the header of the message, and a call that is told nothing has none."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(work))
    sent: list[dict[str, Any]] = []
    told = {"on_conflict": "retry", "countdown": 2}

    def see(headers: Any = None, properties: Any = None, **kwargs: Any) -> None:
        sent.append({**headers, **properties})

    signals.before_task_publish.connect(see)
    try:
        result = task.apply_async(single_instance=told)
        task.apply_async()
    finally:
        signals.before_task_publish.disconnect(see)
    assert sent[0]["single_instance_task"]["options"] == told
    assert sent[0]["single_instance_task"]["task_id"] == sent[0]["id"] == result.id
    assert "single_instance_task" not in sent[1]
    assert not any("single_instance" in message for message in sent)


def test_beat_tells_a_call_what_its_entry_says(local_app: Celery, name: str) -> None:
    """Among the options of the entry."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(work))
    told = {"scope": "queue", "key": f"{name}:beat"}
    options = {"single_instance": told}
    entry = ScheduleEntry(name, task.name, schedule=schedule(1), options=options, app=local_app)
    Scheduler(app=local_app, lazy=True).apply_async(entry)
    assert [holder.name for holder in locks["locmem"].holders()] == [f"{name}:beat~~queued:{name}"]


@pytest.mark.parametrize("told", [None, {"key": "beaten"}], ids=["task", "entry"])
def test_beat_logs_a_refusal_in_one_line(
    local_app: Celery, name: str, caplog: pytest.LogCaptureFixture, told: Any
) -> None:
    """Without a traceback, which other errors keep."""
    guard = single_instance_task(scope="queue", on_conflict="raise", using="locmem")
    task = local_app.task(name=name, shared=False)(guard(work))
    signals.beat_init.send(sender=None)
    scheduler = Scheduler(app=local_app, lazy=True)
    for options in ({"single_instance": told}, {"single_instance": told}, {"once": 1}):
        scheduler.apply_entry(
            ScheduleEntry("tick", name, schedule=schedule(1), options=options, app=local_app)
        )
    refused, failed = (item for item in caplog.records if item.name == "celery.beat")
    key = told["key"] if told else task.name
    text = f"Couldn't apply scheduled task tick: Task {name} is not sent: lock '{key}' is held by "
    assert refused.getMessage().startswith(text)
    assert "\n" not in refused.getMessage()
    assert (refused.levelname, refused.exc_info) == ("WARNING", None)
    assert (failed.levelname, bool(failed.exc_info)) == ("ERROR", True)


@pytest.mark.parametrize(
    ("told", "error", "text"),
    [
        ("raise", TypeError, "single_instance='raise' must be a dict of options"),
        ({"on_conflct": "raise"}, TypeError, "'on_conflct' is not an option; choose from 'key', "),
        ({"on_conflict": "rais"}, ValueError, "on_conflict='rais'"),
        ({"on_conflict": print}, TypeError, "function print>} can't be sent in a message"),
        ({"on_conflict": {"run": print}}, TypeError, "function print>} can't be sent in a message"),
        ({"key": print}, TypeError, "function print>} can't be sent in a message"),
        ({"key": "a:{nope}"}, ValueError, "names 'nope', which is not an argument"),
        ({"key": "a", "unique_on": "all"}, ValueError, "leave one of them out"),
        ({"on_conflict": "supersede"}, ValueError, "needs scope='queue'"),
        ({"timeout": 0}, ValueError, r"0\.001"),
        ({"blocking_timeout": 3}, ValueError, "requires on_conflict='wait'"),
    ],
)
@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_what_makes_no_sense_is_refused_at_the_call(
    local_app: Celery, name: str, told: Any, error: type[Exception], text: str, how: str
) -> None:
    """As it is where the task is defined, and what can't travel besides."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(by_shop))
    with pytest.raises(error, match=text):
        getattr(task, how)(single_instance=told)


@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_options_of_celery_once_are_refused(local_app: Celery, name: str, how: str) -> None:
    """``once=`` is told, not swallowed."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(work))
    with pytest.raises(TypeError, match=r"once=.*celery-once.*single_instance="):
        getattr(task, how)(once={"graceful": True})


# All tasks.


def test_an_app_has_defaults(local_app: Celery, name: str, settings: Any) -> None:
    """Under what the decorator says, and that under what the call says."""
    settings.SINGLE_INSTANCE_TASK = {"using": "locmem", "on_conflict": "raise"}
    plain = local_app.task(name=name, shared=False)(single_instance_task(work))
    skipping = local_app.task(name=f"{name}-2", shared=False)(
        single_instance_task(key=name, on_conflict="skip")(work)
    )
    with lock(name, using="locmem"):
        with pytest.raises(TaskAlreadyRunning):
            plain.apply().get()
        assert plain.apply(single_instance={"on_conflict": "skip"}).get()["skipped"]
        assert skipping.apply().get()["skipped"]
        settings.SINGLE_INSTANCE_TASK = {"using": "locmem"}
        assert plain.apply().get()["skipped"]


def test_a_task_may_say_what_is_the_default_anyway(
    local_app: Celery, name: str, settings: Any
) -> None:
    """Said is said, also where it is what goes without saying."""
    settings.SINGLE_INSTANCE_TASK = {"using": "locmem", "scope": "queue"}
    task = local_app.task(name=name, shared=False)(single_instance_task(scope="run")(work))
    task.delay()
    assert not list(locks["locmem"].holders())
    other = local_app.task(name=f"{name}-2", shared=False)(single_instance_task(work))
    other.delay()
    assert [holder.name for holder in locks["locmem"].holders()] == [f"{name}-2~~queued:{name}-2"]


def test_another_policy_does_without_the_time_of_the_default(settings: Any) -> None:
    """``blocking_timeout`` goes with the ``on_conflict`` that it belongs to."""
    settings.SINGLE_INSTANCE_TASK = {"on_conflict": "wait", "blocking_timeout": 3}
    guard = single_instance_task(on_conflict="skip")(work).single_instance_guard
    assert guard.options.blocking_timeout is None
    assert guard.options_for({"on_conflict": "wait"}).blocking_timeout is None
    guard = single_instance_task(blocking_timeout=5)(work).single_instance_guard
    assert guard.options.on_run_conflict == "wait"
    assert guard.options.blocking_timeout == 5


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("queue", "must be a dict, not 'queue'"),
        ({"scop": "queue"}, "'scop' is not an option"),
        ({"scope": "que"}, "scope='que' is unknown"),
        ({"key": "a"}, "can't have 'key'"),
        ({"countdown": "1"}, "countdown='1' must be a number"),
        ({"using": "nope"}, "using='nope' is not an alias of LOCKS"),
    ],
)
def test_wrong_defaults_are_found(
    local_app: Celery, name: str, settings: Any, given: Any, text: str
) -> None:
    """By the system checks, and at the first use; the import of tasks goes on."""
    settings.SINGLE_INSTANCE_TASK = given
    task = local_app.task(name=name, shared=False)(single_instance_task(work))
    (found,) = [item for item in run_checks() if item.id == "django_redis_lock.E008"]
    assert text in found.msg
    with pytest.raises(ImproperlyConfigured):
        task.apply().get()


def test_a_task_that_does_not_fit_the_defaults_is_found(
    local_app: Celery, name: str, settings: Any
) -> None:
    """The checks name the task; where the setting is there before it, the import fails."""
    guard = single_instance_task(on_conflict="supersede", scope="queue", using="locmem")
    local_app.task(name=name, shared=False)(guard(work))
    other = local_app.task(name=f"{name}-2", shared=False)(
        single_instance_task(scope="queue")(work)
    )
    settings.SINGLE_INSTANCE_TASK = {"on_conflict": "wait"}
    found = [item.msg for item in run_checks() if item.id == "django_redis_lock.E008"]
    (message,) = [item for item in found if name in item]
    assert f"Task {name}-2 does not fit SINGLE_INSTANCE_TASK" in message
    with pytest.raises(ValueError, match="on_conflict='wait' is not a policy"):
        other.delay()
    with pytest.raises(ValueError, match="on_conflict='wait' is not a policy"):
        single_instance_task(scope="queue")(work)


def test_the_decorator_has_the_defaults_of_the_options() -> None:
    """What an editor shows is what counts."""
    shown = inspect.signature(single_instance_task).parameters
    taken = dict(inspect.signature(Options).parameters)
    del taken["unknown"]
    assert [name for name in shown if name not in ("key", "unique_on")] == list(taken)
    assert all(shown[name].default == taken[name].default for name in taken)


@pytest.mark.parametrize("scope", ["run", "queue_and_run"])
def test_superseding_names_its_scope(scope: Any) -> None:
    """Not what else a run could do."""
    with pytest.raises(ValueError, match="'supersede' needs scope='queue'"):
        single_instance_task(scope=scope, on_conflict="supersede")


IDLE: list[dict[str, Any]] = [
    {"countdown": 5},
    {"max_retries": 3},
    {"queue_timeout": 60},
    {"supersede_for": 60},
    {"on_conflict": {"queue": "raise"}},
    {"on_conflict": "retry", "queue_timeout": 60},
]


@pytest.mark.parametrize("given", IDLE, ids=repr)
def test_options_without_effect_are_refused(
    local_app: Celery, name: str, settings: Any, given: dict[str, Any]
) -> None:
    """At the call as at the definition; but not among the defaults for many tasks."""
    task = local_app.task(name=name, shared=False)(single_instance_task(using="locmem")(work))
    for call in (task.apply_async, task.apply, task.s().set(single_instance=given).apply_async):
        with pytest.raises(ValueError, match="leave it out"):
            call(single_instance=given)
    settings.SINGLE_INSTANCE_TASK = given
    assert task.apply().get() == "ran"


# A server that is silent.


@pytest.mark.parametrize("scope", ["queue", "queue_and_run"])
def test_a_silent_server_is_waited_for_once(
    own_server: EmbeddedServer, local_app: Celery, name: str, settings: Any, scope: Any
) -> None:
    """Sending asks it one question, and does not wait for the answer to another."""
    with Proxy(own_server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=2.2"  # beyond what is tried again
        settings.LOCKS = {"default": {"LOCATION": url}}
        task = local_app.task(name=name, shared=False)(single_instance_task(scope=scope)(work))
        with lock("warm", timeout=10):
            pass
        asked: list[str] = []
        caller, call = threading.get_ident(), locks["default"].call

        def seen(step: Any) -> Any:
            if threading.get_ident() == caller:  # not what goes on in the background
                asked.append(type(step).__name__)
            return call(step)

        locks["default"].call = seen  # type: ignore[method-assign]
        proxy.hold_back()
        with pytest.raises(LockUnavailable):
            task.delay()
        assert asked == ["Acquire"]
