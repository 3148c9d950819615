"""A scheduler that leads: what it sends, and what it leaves to others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Any, ClassVar

import pytest
import redis
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import schedule

from django_redis_lock import locks
from django_redis_lock.celery import LeaderScheduler, beat
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol.calls import ask
from django_redis_lock.transport.parking import NoteTick, ReadTicks
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import new_app
from tests.tools import eventually
from tests.tools.celery_worker import messages

HOUR = 3600.0
QUEUE = "beat-test"


class Brief(LeaderScheduler):
    """Has a lock of its own."""

    lock_name = "beat:test"


class Fleeting(Brief):
    """Soon finds out that it leads no more."""

    lease = 3.0


@pytest.fixture
def app(server: EmbeddedServer) -> Celery:
    entry = {"task": "hourly", "schedule": schedule(timedelta(seconds=HOUR))}
    return new_app("beat", task_default_queue=QUEUE, beat_schedule={"hourly": entry})


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the locks' database."""
    with redis.Redis.from_url(server.url()) as client:
        yield client


Make = Callable[..., Any]


@pytest.fixture
def make(app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a beat on a host of its own."""
    monkeypatch.setattr(beat, "STANDBY", 0.3)
    made: list[Any] = []

    def make(file: str = "", kind: type[LeaderScheduler] = Brief) -> Any:
        name = file or f"schedule-{len(made)}"
        made.append(kind(app=app, schedule_filename=str(tmp_path / name), max_interval=None))
        return made[-1]

    yield make
    for each in made:
        each.close()


def led(leader: Any) -> Any:
    """Have a beat lead, with nothing due; return it."""
    assert leader.tick() > 0
    return leader


def sent(leader: Any) -> int:
    """Tick until nothing is due any more; return how many messages are in the queue."""
    for _ in range(10):
        if leader.tick() > 0:
            return messages(QUEUE)
    raise AssertionError("it does not come to an end")


def note(leader: Any, ago: float) -> None:
    token = leader._lock.held_lease().token
    call = NoteTick(leader.lock_name, token, "hourly", time() - ago)
    assert leader._backend.run(ask(call)) == 1


def run_ago(leader: Any, seconds: float) -> None:
    """Have the entry of a leader know that it ran so long ago."""
    entry = leader._led.schedule["hourly"]
    entry.last_run_at -= timedelta(seconds=seconds)
    leader._led._heap = None


def test_it_sends_what_is_due(make: Make) -> None:
    leader = led(make())
    run_ago(leader, 2 * HOUR)
    assert sent(leader) == 1
    assert leader._led.schedule["hourly"].total_run_count == 1
    assert leader.should_sync()
    leader._do_sync()
    assert not leader.should_sync()


def test_what_was_sent_is_not_sent_by_the_next(make: Make, tmp_path: Path) -> None:
    """Though its file tells that the entry is due."""
    first = led(make("a"))
    run_ago(first, 2 * HOUR)
    first.close()
    for file in tmp_path.glob("a*"):
        shutil.copy(file, tmp_path / f"b{file.name[1:]}")
    assert sent(first) == 1
    first.close()
    second = led(make("b"))
    assert messages(QUEUE) == 1
    assert second._led.schedule["hourly"].total_run_count == 1


def test_what_became_due_meanwhile_is_sent_once(make: Make) -> None:
    """By a beat that has never led, and has no file."""
    first = led(make())
    note(first, 1.5 * HOUR)
    first.close()
    assert sent(make()) == 1


def test_notes_that_are_no_times_are_skipped_and_named(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry that one of them is about is sent as if it had none, and then has a note."""
    key, odd = "lock-ticks:beat:test", ["soon", "", "inf", "-1", b"\xff", f"{time() + 2e5:.6f}"]
    client.hset(key, mapping={f"entry {number}": at for number, at in enumerate(odd)})
    client.hset(key, mapping={b"\xfe": "1", "hourly": "1e12", "other": f"{time():.6f}"})
    leader = led(make())
    assert {*leader._sent} == {"other", "\ufffd"}
    text = "beat: ignored a note without a valid time for 'beat:test': "
    assert caplog.text.count(text) == len(odd) + 1
    assert f"{text}{b'hourly'!r} at {b'1e12'!r}" in caplog.text
    run_ago(leader, 2 * HOUR)
    assert sent(leader) == 1
    assert float(client.hget(key, "hourly")) < 1e11


def test_the_time_of_a_note_is_in_the_zone_of_the_app(make: Make, app: Celery) -> None:
    """From it a crontab of Celery before 5.7 reads which day it was."""
    app.conf.timezone = "Asia/Kolkata"
    first = led(make())
    note(first, 10)
    first.close()
    entry = led(make())._led.schedule["hourly"]
    assert entry.last_run_at.utcoffset() == timedelta(hours=5.5)


def test_the_broker_is_reached_before_the_note(make: Make, app: Celery) -> None:
    """Where that takes long, no entry is noted that may never be sent."""
    leader = led(make())
    run_ago(leader, 2 * HOUR)

    def connect() -> None:
        raise KeyError("no broker")

    leader._led._ensure_connected = connect
    with pytest.raises(KeyError):
        leader.tick()
    leader.close()
    assert leader._backend.run(ask(ReadTicks(leader.lock_name))) == []


class Storing(Scheduler):
    """Says who stores."""

    stored: ClassVar[list[Any]] = []

    def sync(self) -> None:
        super().sync()
        self.stored.append(self)


def test_a_beat_that_leads_no_more_stores_and_sends_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brief, "scheduler", Storing)
    first, second = led(make()), make()
    former = first._led
    locks["default"].force_release(first.lock_name, by="a test")
    led(second)
    run_ago(first, 2 * HOUR)
    assert first.tick() == 0
    former.sync()  # as DatabaseScheduler does when the process ends
    assert first.tick() == 0
    assert messages(QUEUE) == 0
    second.close()
    assert Storing.stored
    assert former not in Storing.stored
    run_ago(led(first), 2 * HOUR)
    assert sent(first) == 1


def test_a_beat_that_lost_the_lead_says_so_with_nothing_due(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(Brief, "scheduler", Storing)
    leader = led(make(kind=Fleeting))
    locks["default"].force_release(leader.lock_name, by="a test")
    eventually(lambda: leader._lock.lost)
    leader.sync()
    assert leader._led not in Storing.stored
    assert leader.tick() == 0
    led(leader)


def test_a_signal_in_the_middle_of_a_tick(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beat's handler closes the scheduler, and once more when the tick has ended."""
    leader = led(make())
    run_ago(leader, 2 * HOUR)

    def interrupted(*args: Any, **options: Any) -> None:
        leader.close()
        assert locks["default"].holder(leader.lock_name) is not None
        raise SystemExit

    monkeypatch.setattr(Scheduler, "apply_entry", interrupted)
    with pytest.raises(SystemExit):
        leader.tick()
    leader.close()
    assert locks["default"].holder(leader.lock_name) is None
    leader.close()


def test_a_signal_whose_exception_is_lost(make: Make) -> None:
    """It struck where Python ignores exceptions, such as a ``__del__``."""
    leader = led(make())
    entry = leader._led.schedule["hourly"]
    entry.is_due = lambda: (leader.close(), (False, HOUR))[1]  # type: ignore[method-assign]
    leader._led._heap = None
    leader.tick()
    with pytest.raises(SystemExit):
        leader.tick()


def test_it_leads_the_scheduler_of_the_app(make: Make, app: Celery) -> None:
    app.conf.beat_scheduler = "celery.beat:Scheduler"
    assert led(make())._kind.__mro__[2] is Scheduler
    app.conf.beat_scheduler = "django_redis_lock.celery:LeaderScheduler"
    assert make()._kind.__mro__[2] is PersistentScheduler


def test_a_backend_that_can_not(app: Celery, settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"}}
    with pytest.raises(InvalidLockBackend, match=r"Brief can't lead: .* is a LocMemLockBackend"):
        Brief(app=app)


def test_no_lock_server(make: Make, own_server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    leader = led(make())
    own_server.kill()
    run_ago(leader, 2 * HOUR)
    assert leader.tick() == beat.TRY_AGAIN
    assert leader.tick() == beat.TRY_AGAIN
    assert messages(QUEUE) == 0
    own_server.restart()
    assert sent(leader) == 1
