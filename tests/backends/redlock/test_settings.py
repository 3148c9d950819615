"""Settings of the quorum, and the outcome of votes."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.backends.redlock import votes
from django_redis_lock.backends.redlock.votes import PENDING
from django_redis_lock.exceptions import InvalidLockBackend
from tests.tools import findings
from tests.tools.quorums import REDLOCK

URLS = [f"redis://locks-{number}.internal:6379/0" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (None, "a list of at least three"),
        (URLS[0], "a list of at least three"),
        (URLS[:1], "names 1 server: name 3, 5 or"),
        (URLS[:4], "names 4 servers: .* another odd number"),
        ([URLS[0], URLS[1], URLS[0].replace("/0", "/1")], "one server twice.*6379/0.*6379/1"),
        (["redis://localhost", "redis://:secret@127.0.0.1:6379/3", URLS[0]], "one server twice"),
        (["unix:///a.sock", "unix:///b.sock", "unix:///a.sock?db=1"], "one server twice"),
        (["locks", "locks", URLS[0]], "one server twice"),
        ([*URLS[:2], 7], "has 7"),
    ],
)
def test_servers_that_are_no_quorum(settings: Any, location: Any, words: str) -> None:
    """An even number, too few, or a repeated server fails the checks and the first use."""
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": location}}
    assert [item.id for item in findings()] == ["django_redis_lock.E002"]
    with pytest.raises(InvalidLockBackend, match=words) as caught:
        lock("a").acquire()
    assert "secret" not in str(caught.value)


def test_good_settings(settings: Any) -> None:
    """Five servers are valid, and REJOIN_DELAY defaults to TIMEOUT."""
    entry = {"BACKEND": REDLOCK, "LOCATION": URLS, "TIMEOUT": 7}
    settings.LOCKS = {
        "default": entry,
        "endless": {**entry, "TIMEOUT": None},
        "set": {**entry, "OPTIONS": {"SERVER_TIMEOUT": 0.1, "REJOIN_DELAY": 0}},
    }
    assert not findings()
    assert [locks[alias].rejoin_delay for alias in locks] == [7, 30, 0]
    assert [locks[alias].server_timeout for alias in locks] == [0.5, 0.5, 0.1]


@pytest.mark.parametrize(
    "options", [{"SERVER_TIMEOUT": 0}, {"REJOIN_DELAY": -1}, {"WAIT": "queue"}]
)
def test_senseless_options(settings: Any, options: dict[str, Any]) -> None:
    (name,) = options
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": URLS[:3], "OPTIONS": options}}
    with pytest.raises(InvalidLockBackend, match=name):
        lock("a").acquire()


def test_aliases_of_caches(settings: Any) -> None:
    """A server can be an alias; a check finds one that CACHES lacks."""
    redis = {"BACKEND": "django_redis.cache.RedisCache"}
    settings.CACHES = {
        **settings.CACHES,
        "one": {**redis, "LOCATION": URLS[0]},
        "two": {**redis, "LOCATION": URLS[1]},
    }
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": ["one", "two", "three"]}}
    assert [item.id for item in findings()] == ["django_redis_lock.E004"]
    settings.CACHES = {**settings.CACHES, "same": {**redis, "LOCATION": URLS[0]}}
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": ["one", "two", "same"]}}
    with pytest.raises(InvalidLockBackend, match="one server twice: one and same"):
        lock("a").acquire()


def test_votes_are_counted_as_soon_as_they_decide() -> None:
    """A vote does not wait for a server that can't change the outcome."""
    yes, no, silent = [7, 100, 0, 0, 1], [0, 50, 0, 0, 2], [0, 50, 0, 2, 0]
    down = OSError()
    count = votes.count_votes
    assert count([yes, yes, PENDING]).won
    assert count([yes, no, PENDING]) is votes.CONTESTED
    assert not count([no, no, PENDING]).won
    assert count([yes, down, PENDING]) is PENDING
    assert not count([yes, no, down]).won
    for answers in ([yes, down, down], [yes, silent, silent], [no, down, silent]):
        assert count(answers) is PENDING


def test_a_waiter_has_the_first_of_its_positions() -> None:
    pages = [[1, 10, b"a"], [3, 7, b"a", 8, b"b"], [2, 9, b"b"]]
    assert votes.queue(pages) == [3, 7, b"a", 8, b"b"]


def test_a_holder_that_may_have_a_majority_is_shown() -> None:
    known = [10, b"token 1 - - {}", 5000, 0], [12, None, -2, 0]
    assert votes.holders([*known, OSError()]) == [12, b"token 1 - - {}", 5000, 0]
    assert votes.holders([*known, PENDING]) is PENDING


def test_a_lease_is_what_a_majority_keeps() -> None:
    """The lease is what a majority keeps at least, less the drift."""
    assert votes.leases([[10_000], [5_000], [1_000]]) == [votes.trusted(5_000)]
    assert votes.trusted(5_000) == 4_948
    assert votes.leases([[10_000], [5_000], PENDING]) == [votes.trusted(5_000)]
    assert votes.leases([[-1], [-1], [-2]]) == [-1]
    assert votes.leases([[-2], [-2], PENDING]) == [-2]
    assert votes.leases([[9], [-2], PENDING]) is PENDING
    assert votes.leases([[9, -1], [-2, -1], OSError()]) == [None, -1]
    assert votes.leases([[9], [-2], OSError()]) is PENDING
