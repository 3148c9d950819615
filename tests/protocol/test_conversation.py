"""How leases are set, detached and released, step by step, without a server."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import conversation
from django_redis_lock.protocol.calls import Pause, Release, ReleaseMany, Renew, TakeOver
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.support.clock import monotonic


def lease(name: str = "name", timeout: float = 30.0) -> Lease:
    request = Request(name, f"token of {name}", timeout, "{}")
    return request.granted(7, monotonic() + timeout)


def refused(name: str = "") -> LockUnavailable:
    """Return an error after which a call is not sent again."""
    error = LockUnavailable("refused", name=name)
    error.passing = False
    return error


def finish(steps: Any, answer: Any) -> Any:
    """Give steps their last answer, and return what they return."""
    with pytest.raises(StopIteration) as stop:
        steps.send(answer)
    return stop.value.value


def lose_reply(steps: Any, call: Any) -> Any:
    """Send a call whose reply is lost; return the call when it is sent again."""
    call.sending()
    pause = steps.throw(LockUnavailable("no reply"))
    assert isinstance(pause, Pause)
    assert steps.send(None) is call
    call.sent_at = call.first_sent_at + 0.001
    return call


def test_leases_are_set_as_the_server_says() -> None:
    """What is left counts from the sending; no end and no lock are told apart."""
    held, endless, lost = lease("held"), lease("endless"), lease("lost")
    steps = conversation.set_leases([held, endless, lost], [5_000, -1, 0])
    call = next(steps)
    assert isinstance(call, Renew)
    assert [(name, ms) for name, _, ms in call.leases] == [
        ("held", 5_000),
        ("endless", -1),
        ("lost", 0),
    ]
    assert [token for _, token, _ in call.leases] == [held.token, endless.token, lost.token]
    call.sending()
    assert finish(steps, [5_000, -1, -2]) == [lost]
    assert held.deadline == pytest.approx(call.sent_at + 5)
    assert endless.deadline == math.inf
    assert [each.version for each in (held, endless, lost)] == [1, 1, 1]


def test_failure_to_set_leases_names_the_first_lock() -> None:
    """An error that has no name gets one, and one that has a name keeps it."""
    for given, shown in (("", "first"), ("other", "other")):
        steps = conversation.set_leases([lease("first"), lease("second")], [0, 0])
        next(steps)
        with pytest.raises(LockUnavailable) as caught:
            steps.throw(refused(given))
        assert caught.value.name == shown


@pytest.mark.parametrize(("names", "kind"), [(["a"], Release), (["a", "b"], ReleaseMany)])
def test_release_returns_what_was_still_held(names: list[str], kind: type) -> None:
    """One lock and several are released in one call each."""
    leases = [lease(name) for name in names]
    steps = conversation.release(leases)
    call = next(steps)
    assert type(call) is kind
    call.sending()
    held = [1] + [0] * (len(leases) - 1)
    assert finish(steps, held if len(held) > 1 else 1) == {leases[0].token}


def test_release_whose_reply_was_lost_is_no_loss() -> None:
    """The second sending finds the lock free, which the first may have released."""
    mine = lease()
    steps = conversation.release([mine])
    lose_reply(steps, next(steps))
    assert finish(steps, 0) == {mine.token}


def test_release_of_an_expired_lease_is_a_loss() -> None:
    """A lease that had ended before the first sending was not released by it."""
    mine = lease()
    mine.deadline = monotonic() - 1
    steps = conversation.release([mine])
    lose_reply(steps, next(steps))
    assert finish(steps, 0) == set()


def test_release_that_is_repeated_by_the_caller_is_no_loss() -> None:
    """The first call failed, but the server may have carried it out while the lease was valid."""
    mine = lease()
    mine.release_sent_at = monotonic()
    steps = conversation.release([mine])
    call = next(steps)
    call.sending()
    assert finish(steps, 0) == {mine.token}


def detaching(mine: Lease) -> tuple[Any, TakeOver]:
    call = TakeOver(Request(mine.name, "ticket", 30.0, "{}"), "digest")
    steps = conversation.detach(mine, call)
    assert next(steps) is call
    return steps, call


def test_detach() -> None:
    """A fence says that the lock is detached, none that it was no longer held."""
    for answer, detached in ((7, True), (None, False)):
        mine = lease()
        steps, call = detaching(mine)
        call.sending()
        assert finish(steps, answer) is detached
        assert mine.release_sent_at == call.first_sent_at


def test_detach_whose_reply_was_lost_is_no_loss() -> None:
    """Another process may have taken the lock over before the second sending."""
    steps, call = detaching(lease())
    lose_reply(steps, call)
    assert finish(steps, None) is True


def test_failed_detach_keeps_in_mind_when_it_was_first_sent() -> None:
    """So a second one knows that the first may have been carried out."""
    mine = lease()
    steps, call = detaching(mine)
    call.sending()
    with pytest.raises(LockUnavailable):
        steps.throw(refused())
    first = mine.release_sent_at
    assert first == call.first_sent_at
    steps, call = detaching(mine)
    call.sending()
    assert finish(steps, None) is True
    assert mine.release_sent_at == first
