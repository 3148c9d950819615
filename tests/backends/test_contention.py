"""Counting what happens to locks: in the background, in bounded space, and never in the way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery.signals import worker_process_shutdown
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.backends import tallies
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import contention
from django_redis_lock.protocol.calls import Count
from django_redis_lock.protocol.contention import MOST, SLOT, SLOTS, Slot
from django_redis_lock.protocol.conversation import ask
from example_project.embedded import EmbeddedServer
from tests.settings import server_url
from tests.tools import Child, eventually, findings

OPERATORS = {"CONTENTION": True, "GROUPS": {"product:*": "product"}}
KEY = "lock-contention:product"
ON = {"default": {"LOCATION": server_url(), "OPERATORS": OPERATORS}}
EVERY_LETTER = "".join(chr(first + n) for first in (65, 97) for n in range(22)) + "xyz"

COUNTING = f"""
    from django.conf import settings
    settings.LOCKS = {ON!r}
"""


@pytest.fixture
def counting(server: EmbeddedServer) -> Iterator[None]:
    with override_settings(LOCKS=ON):
        yield


def total() -> Slot:
    found = locks["default"].contention("product:1")
    assert found is not None
    return found.total


def take(times: int = 1) -> None:
    for _ in range(times):
        with lock("product:1", timeout=20):
            pass


@pytest.mark.usefixtures("counting")
def test_counts_are_sent_in_the_background(client: redis.Redis) -> None:
    """They are on the server within a few seconds, in one hash for each group, and expire."""
    take(3)
    with lock("another", timeout=20):
        pass
    eventually(lambda: client.exists(KEY))
    assert total().acquired == 3
    assert locks["default"].contention("another").group == OTHER
    assert sorted(client.keys("*contention*")) == [f"lock-contention:{OTHER}", KEY]
    assert 3600 < client.ttl(KEY) <= 3900


def test_without_the_setting_nothing_is_started_or_written(
    server: EmbeddedServer, client: redis.Redis, settings: Any
) -> None:
    """No thread, and no key."""
    settings.LOCKS = {"default": {"LOCATION": server_url()}}
    before = {thread.name for thread in threading.enumerate()}
    take(3)
    locks["default"].send_counts()
    after = {thread.name for thread in threading.enumerate()}
    assert not [name for name in after - before if "contention" in name]
    assert client.keys("*contention*") == []


def test_processes_add_to_one_count_and_send_the_rest_as_they_end(
    server: EmbeddedServer, settings: Any
) -> None:
    """Two processes and their forked children write at once, each what happened in it, once."""
    settings.LOCKS = ON
    program = COUNTING + (
        """
    def work():
        for _ in range(100):
            with lock("product:1", timeout=20):
                pass
    work()
    child = os.fork()
    work()
    if child:
        os.waitpid(child, 0)
    """
    )
    with Child(program) as one, Child(program) as other:
        assert [one.end(), other.end()] == [0, 0]
    assert total().acquired == total().held.number == 600


def test_a_killed_process_loses_the_last_seconds_at_most(
    server: EmbeddedServer, settings: Any, client: redis.Redis
) -> None:
    """What is older than the interval of sending is on the server."""
    settings.LOCKS = ON
    program = COUNTING + (
        """
    with lock("product:1", timeout=20):
        pass
    hear()
    for _ in range(10):
        with lock("product:1", timeout=20):
            pass
    say("done")
    hear()
    """
    )
    with Child(program) as child:
        eventually(lambda: client.exists(KEY))
        child.say()
        assert child.hear() == "done"
    assert 1 <= total().acquired <= 11


@pytest.mark.usefixtures("counting")
def test_a_pool_process_of_celery_sends_its_counts_before_it_ends() -> None:
    """Such a process ends without ``atexit``, perhaps after one short task."""
    take(2)
    worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert total().acquired == 2


def test_closing_a_backend_sends_its_counts(server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = ON
    take(2)
    locks["default"].close()
    assert total().acquired == 2


def test_a_server_that_is_gone_costs_a_second_at_the_end_and_one_warning(
    own_server: EmbeddedServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The counts are dropped, no caller hears of it, and counting goes on with the server."""
    entry = {"LOCATION": own_server.url(), "OPERATORS": OPERATORS}
    settings.LOCKS = {"default": entry}
    tally = locks["default"].tally
    take()
    own_server.pause()
    try:
        with caplog.at_level(logging.WARNING, "django_redis_lock"):
            began = time.monotonic()
            locks["default"].send_counts()
            assert time.monotonic() - began < tallies.EXIT + 0.5
            own_server.kill()
            eventually(lambda: caplog.messages)
            for _ in range(3):
                tally.note("product:1", contention.BUSY, 0.0)
                locks["default"].send_counts()
    finally:
        own_server.restart()
    (message,) = caplog.messages
    assert message.startswith("The contention of LOCKS['default'] is not counted for now: ")
    take(4)
    locks["default"].send_counts()
    assert total().acquired == 4


@pytest.mark.usefixtures("counting")
def test_a_key_of_another_program_is_left_alone(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock is not affected, and the log says why nothing is counted."""
    client.set(KEY, "something else")
    with caplog.at_level(logging.WARNING, "django_redis_lock"):
        take()
        locks["default"].send_counts()
    assert "WRONGTYPE" in caplog.text
    assert client.get(KEY) == "something else"


@pytest.mark.usefixtures("counting")
def test_old_slots_vanish(client: redis.Redis) -> None:
    """Slots of more than an hour ago, or of the future, are not shown, and the next one removes
    them."""
    now = client.time()[0] // SLOT
    slots = (now - 20, now - SLOTS, now - SLOTS + 2, now + 2)
    client.hset(KEY, mapping={**{str(slot): "a1A1x1" for slot in slots}, "?": "!"})
    assert total().acquired == 1
    take()
    locks["default"].send_counts()
    assert total().acquired == 2
    assert {int(slot) for slot in client.hkeys(KEY)} <= {now - SLOTS + 2, now, now + 1}


@pytest.mark.parametrize("written", ["9" * 5000, "a", "", "a1\0b", "x" + "9" * 5000, "é3"])
@pytest.mark.usefixtures("counting")
def test_what_another_program_writes_breaks_nothing(client: redis.Redis, written: str) -> None:
    """It is passed over, or counts as far as it can be read, and the next counts replace it."""
    client.hset(KEY, mapping={written: "a1", str(client.time()[0] // SLOT): written})
    assert total().acquired in {0, 1}
    take(2)
    locks["default"].send_counts()
    assert total().acquired in {2, 3}
    assert not client.hexists(KEY, written)


def test_the_clock_of_the_server_decides(
    server: EmbeddedServer, settings: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose own clock is wrong counts into the same slot as all others."""
    settings.LOCKS = ON
    monkeypatch.setattr(time, "time", lambda: 1.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    take()
    locks["default"].send_counts()
    (slot,) = client.hkeys(KEY)
    assert client.time()[0] // SLOT - int(slot) in {0, 1}


@pytest.mark.usefixtures("counting")
def test_a_group_takes_bounded_space(client: redis.Redis) -> None:
    """A few hundred bytes where a lock is busy all the time; 8 KB if each count has its limit."""
    now = client.time()[0] // SLOT
    busy = "a29514b310c12d3A1207B15901C12390D250E31x120y14"
    client.hset(KEY, mapping={str(now - n): busy for n in range(SLOTS)})
    assert client.memory_usage(KEY) < 850
    client.hset(KEY, mapping={str(now - n): busy for n in range(1, 40)})
    everything = dict.fromkeys(EVERY_LETTER, 10**15)
    for _ in range(2):
        locks["default"].run(ask(Count({"product": everything})))
    most = contention.write_counts(dict.fromkeys(EVERY_LETTER, MOST))
    assert client.hvals(KEY).count(most) == 1
    kept = sorted(map(int, client.hkeys(KEY)))
    assert kept[-1] - kept[0] < SLOTS
    client.hset(KEY, mapping={str(slot): most for slot in kept})
    assert client.memory_usage(KEY, samples=0) < 8_000


@pytest.mark.usefixtures("counting")
def test_notes_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added up by the caller where the thread does not come to it."""
    monkeypatch.setattr(tallies, "EVERY", 60.0)
    tally = locks["default"].tally
    for number in range(10 * tallies.MANY):
        tally.note(f"product:{number}", contention.HELD, number)
        assert len(tally._notes) <= tallies.MANY + 1
    locks["default"].send_counts()
    assert total().held.number == 10 * tallies.MANY


@pytest.mark.usefixtures("counting")
def test_threads_lose_no_count() -> None:
    tally = locks["default"].tally

    def note() -> None:
        for _ in range(5000):
            tally.note("product:1", contention.BUSY, 0.0)

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks["default"].send_counts()
    assert total().busy == 20_000


def test_getset_refuses_the_setting(settings: Any) -> None:
    """It has no scripts to count with; the system check says so."""
    kind = "django_redis_lock.backends.getset.GetSetLockBackend"
    settings.LOCKS = {
        "default": {"BACKEND": kind, "LOCATION": server_url(), "OPERATORS": OPERATORS}
    }
    with pytest.raises(InvalidLockBackend, match=r"CONTENTION.* without scripts"):
        locks["default"]
    assert ["CONTENTION" in item.msg for item in findings()] == [True]
