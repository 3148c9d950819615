"""What the renewer does when something else happens meanwhile, step by step, without a server."""

from __future__ import annotations

import threading
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_lock.backends.renewal import Renewer
from django_redis_lock.protocol import conversation
from django_redis_lock.protocol.lease import Lease, Request
from tests.protocol.steps import ended
from tests.tools import eventually


class FakeBackend:
    """Answers renewals when it is told to, and counts how often it is asked where a lock is."""

    alias = "default"
    operators = SimpleNamespace(audit_entries=10)

    def __init__(self) -> None:
        self.place = "one"
        self.renewals = threading.Semaphore(0)
        self.answer = threading.Event()

    def together(self, name: str) -> str:
        return self.place

    def run(self, steps: Any) -> Any:
        call = next(steps)
        call.sending()
        self.renewals.release()
        assert self.answer.wait(5)
        return ended(steps, [30_000])


@pytest.fixture
def backend() -> Any:
    fake = FakeBackend()
    yield fake
    fake.answer.set()


def granted() -> Lease:
    return Request("name", "token", 30.0, "{}").granted(7, monotonic() + 30)


HOLDER = FakeBackend()
"""Anything that can be referred to weakly."""


@pytest.mark.parametrize("begun", ["before the renewal", "during the renewal"])
def test_a_lease_that_is_being_shortened_is_not_believed_to_be_renewed(
    backend: FakeBackend, begun: str
) -> None:
    """The server may carry out the renewal first, and answer it before the other call."""
    renewer = Renewer()
    lease = granted()
    shorten = conversation.set_leases([lease], [1_000])
    if begun == "before the renewal":
        next(shorten)
    renewer.add(lease, backend, HOLDER)
    with renewer.mutex:
        server = renewer._leases["token"]
        server.leases["token"].hurry(0.0)
        server.wake(0.0)
    assert backend.renewals.acquire(timeout=5)
    if begun == "during the renewal":
        next(shorten)
    backend.answer.set()
    eventually(lambda: server._calls == 0)
    assert lease.remaining <= 1
    ended(shorten, [1_000])
    renewer.discard(lease)


def test_a_lock_that_has_moved_is_renewed_at_its_new_place_at_once(backend: FakeBackend) -> None:
    """If it were due, but not yet to be renewed, a thread would be busy until it is."""
    renewer = Renewer()
    lease = granted()
    with renewer.mutex:
        renewer.add(lease, backend, HOLDER)
        former = renewer._leases["token"]
        kept = former.leases["token"]
        backend.place = "two"
        assert former._sort([kept], may_call=True) == ([], [], [])
        assert renewer._leases["token"].leases == {"token": kept}
        assert renewer._leases["token"] is not former
        assert kept.soon <= kept.due <= monotonic()
    renewer.discard(lease)
