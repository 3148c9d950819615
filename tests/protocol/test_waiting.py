"""How waiters of a process are woken, and what they know of the server's clock."""

from __future__ import annotations

import math
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_lock.protocol import heartbeats, waiting
from django_redis_lock.protocol.calls import Acquire, Claim, ComeBack, Heartbeat, Release, Wait
from django_redis_lock.protocol.heartbeats import Heart, beat
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import PollingRegistry, WaiterRegistry
from tests.protocol.steps import ended, joined, refused


def test_waiter_whose_event_loop_is_closed_is_gone() -> None:
    """It can't take the lock, so it leaves, and the grant goes to the next."""
    registry = WaiterRegistry()
    closed, _ = joined(registry, "closed"), joined(registry, "other")
    closed.sleeper = lambda: False
    assert registry.notify("closed", waiting.Grant(7, 1_000, 0, 0.0)) is False
    assert registry.notify("closed") is False
    assert registry.notify("other") is True


@pytest.mark.parametrize(
    ("fence", "counts"),
    [(7, True), (waiting.A_DAY * 1000 - 1, True), (waiting.A_DAY * 1000, False)],
)
def test_a_fence_of_the_far_future_has_its_waiter_ask(fence: int, counts: bool) -> None:
    """Another program may have sent it. A grant whose waiter has left is given back."""
    given: list[str] = []
    registry = WaiterRegistry(give_back=lambda call, seconds: given.append(call.token))
    registry.must_claim = True
    waiter = joined(registry, "token")
    for token in ("left", "token"):
        registry.take_in(f"grant {token} {fence} 1000 0 name".encode())
    assert (waiter.grant is not None, waiter.must_ask, given) == (counts, not counts, ["left"])


@pytest.mark.parametrize(
    ("readings", "age"),
    [
        ([(-0.8, 999_200)], 0.0),  # given just now
        ([(-0.8, 999_000)], 0.0),  # the clock runs slower
        ([(-0.8004, 1_000_200)], 1.0004),
        ([(-3.0, 1_000_000), (0.0, 1_002_000)], 3.0),  # set back by 1 s
        ([(-3.0, 1_000_000), (0.0, 973_000)], 3.0),  # set back by 30 s
        ([(-3.0, 970_000), (0.0, 973_000)], math.inf),  # set back before both
        ([(-60.1, 939_900)], math.inf),  # read too long ago
        ([], math.inf),
    ],
)
def test_how_old_a_grant_is(readings: list[tuple[float, int]], age: float) -> None:
    """It looks younger after the server's clock was set back, so two readings of that count."""
    registry, now = WaiterRegistry(), monotonic() + 100
    for at, server_ms in readings:
        registry.note_server_ms(server_ms, now + at)
    assert registry._age(waiting.Grant(7, 1000, 1_000_000, now)) == pytest.approx(age, abs=0.0001)


@pytest.mark.parametrize(("fence", "then"), [(8, Claim), (6, Acquire)])
def test_a_grant_that_was_taken_back_is_asked_about(fence: int, then: type[Any]) -> None:
    """Its fence is less than one that was seen. It looks young if the clock was set back."""
    registry = WaiterRegistry()
    registry.must_claim = True
    steps = registry.wait_in_queue(Request("name", "token", 30.0, "{}"), monotonic() + 10)
    call = next(steps)
    call.sending()
    assert isinstance(steps.send([-7, 30_000, 1_000_000, 1, 5]), Wait)
    registry.take_in(b"grant token %d 30000 1000000 name" % fence)
    assert isinstance(next(steps), then)


def test_who_gives_up_is_not_brought_back() -> None:
    """A heartbeat that is sent before its withdrawal is answered finds it gone."""
    registry = WaiterRegistry()
    steps = registry.wait_in_queue(Request("name", "token", 30.0, "{}"), monotonic())
    assert isinstance(next(steps), Acquire)
    assert isinstance(steps.send([-7, 30_000, 1_000_000, 1, 5]), Wait)
    assert isinstance(next(steps), Release)
    assert registry.present() == []


@pytest.mark.parametrize("message", [b"", b"grant token 5 1000 0 name", b"lost"])
def test_who_is_told_of_a_grant_asks_and_does_not_come_back(message: bytes) -> None:
    """By then it may have released the lock, and would stand in the queue again."""
    registry = WaiterRegistry()
    waiter = joined(registry, "token")
    steps = beat(registry, {"name": [waiter]}, 0, monotonic() + 1, asks=False)
    assert isinstance(next(steps), Heartbeat)
    answer = [b"1000 -1", b"name", *[message] * (message != b"")]
    told = message.startswith(b"grant")
    if told:
        with pytest.raises(StopIteration):
            steps.send(answer)
    else:
        assert isinstance(steps.send(answer), ComeBack)
    assert waiter.must_ask is told


def test_all_waiters_of_a_lock_come_back_in_parts() -> None:
    registry = WaiterRegistry()
    waiters = [joined(registry, f"{number}") for number in range(70)]
    steps = beat(registry, {"name": waiters}, 0, monotonic() + 1, asks=True)
    next(steps)
    first = steps.send([b"1000 -1", b""])
    second = steps.send([1] * len(first.requests))
    assert [*first.requests, *second.requests] == [waiter.request for waiter in waiters]


def test_locks_take_turns_in_the_heartbeats_of_a_process_that_waits_for_many() -> None:
    names = {f"{number}": "" for number in range(100)}
    sent = [name for turn in range(2) for name, _ in Heartbeat("c1-1", names, turn).some()]
    assert {*sent} == {*names}


def test_an_outage_begins_with_its_own_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(heartbeats, "monotonic", lambda: now)
    registry = WaiterRegistry()
    waiter, heart = joined(registry, "token"), Heart(registry, SimpleNamespace(alias="default"))
    for is_outage in (True, False, True):
        steps = heart._beat("server", {"name": [waiter]})
        assert isinstance(next(steps), Heartbeat)
        if is_outage:
            with pytest.raises(StopIteration):
                steps.throw(refused())
        else:
            assert isinstance(steps.send([b"1000 -1", b""]), ComeBack)
            ended(steps, [0])
        now += heartbeats.OUTAGE_LIMIT
    assert waiter.error is None


def test_waiters_of_a_lock_take_turns_at_asking() -> None:
    """One at a time, also when one leaves. Those of other locks have their own turns."""

    def turns(*among: waiting.LocalWaiter) -> list[str]:
        return [waiter.request.token for waiter in among if waiter.turn_at < math.inf]

    registry = PollingRegistry(60.0)
    waiters = [joined(registry, token) for token in "abc"]
    elsewhere = joined(registry, "x", "other")
    for waiter, following in [(0, "b"), (1, "c"), (2, "a"), (0, "b")]:
        registry.waits(waiters[waiter], -1)
        assert turns(*waiters) == [following]
    assert 40 <= waiters[1].turn_at - monotonic() <= 72
    registry.waits(waiters[2], -1)  # who comes while another has the turn
    assert turns(*waiters) == ["b"]
    registry.freed("name")
    assert turns(*waiters) == ["b"]
    assert waiters[1].turn_at <= monotonic(), "it need not wait for its time"
    registry.leave(waiters.pop(1))
    assert turns(*waiters) == ["a"]
    assert turns(elsewhere) == []
    registry.waits(elsewhere, 98)
    assert elsewhere.turn_at - monotonic() <= 0.1


def test_a_lock_whose_waiter_does_not_react_is_left_out_of_heartbeats() -> None:
    """As its event loop is blocked: the server passes this process over then."""
    registry = WaiterRegistry()
    waiter = joined(registry, "token")
    waiter.request.position = 1
    heart = Heart(registry, SimpleNamespace(alias="default", renewal_group=lambda name: "server"))
    registry.notify("token")
    assert [[*heart._by_server()] for _ in range(2)] == [["server"], []]


def test_a_waiter_looks_whether_the_turn_of_another_was_lost() -> None:
    registry = PollingRegistry(60.0)
    waiter, gone = joined(registry, "token"), joined(registry, "gone")
    registry.waits(waiter, -1)
    assert gone.turn_at < math.inf
    del gone
    assert registry._checks_at(math.inf) <= monotonic() + waiting.TURN
    registry._check(waiter)
    assert waiter.turn_at <= monotonic()
