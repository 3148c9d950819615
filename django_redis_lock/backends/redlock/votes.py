"""What a majority of the servers answers.

Each function gets one answer per server: an exception stands for a failure, and ``PENDING`` for an
answer that has not come yet. It returns the result, or ``PENDING`` if it needs more answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from django_redis_lock.exceptions import LockError

DRIFT = 0.01  # the part of a lease by which two clocks may differ while it lasts
DRIFT_MS = 2  # milliseconds more, for rounding: expiry is exact to one of them

Answers = Sequence[Any]
Count = Callable[[list[Any]], Any]  # one of the functions below


class Pending:
    """The type of ``PENDING`` and ``CONTESTED``."""


PENDING = Pending()  # an answer that has not come yet, or an outcome without it
CONTESTED = Pending()
"""``PENDING`` where callers share the votes: as long as one waits, no caller gets the lock."""


class NoQuorum(LockError):
    """Too few servers answered to know what a majority says."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(repr(answers))
        self.answers = list(answers)


def majority(servers: int) -> int:
    """Return how many servers are a majority. Any two majorities share a server."""
    return servers // 2 + 1


def trusted(lease_ms: float) -> int:
    """Return the milliseconds for which another clock can rely on a lease."""
    return math.floor(lease_ms - lease_ms * DRIFT - DRIFT_MS)


def received(answers: Answers) -> list[Any]:
    """Return the answers without failures and pending ones."""
    return [item for item in answers if item is not PENDING and not isinstance(item, Exception)]


@dataclass(frozen=True)
class Votes:
    """The result of a vote on a lock."""

    won: bool
    left_ms: float = 0.0  # if another holds it: until a majority could be free
    split: bool = False  # whether none has a majority: callers that came together share it
    now_ms: int = 0


def count_votes(answers: Answers) -> Any:
    """Return the ``Votes`` in answers of ``quorum_acquire.lua``."""
    needed = majority(len(answers))
    voters = [item for item in received(answers) if item[3] < 2]
    if len(voters) < needed:
        return PENDING
    mine = [item for item in voters if item[0]]
    others = [item for item in voters if not item[0]]
    now_ms = int(max(item[2] for item in voters) // 1000)
    if len(mine) >= needed:
        return Votes(won=True, now_ms=now_ms)
    if len(mine) + answers.count(PENDING) >= needed:
        return CONTESTED
    holders = Counter(item[4] for item in others)
    unknown = len(answers) - len(voters)
    left_ms = sorted(math.inf if vote[1] < 0 else vote[1] for vote in others)
    split = max(holders.values()) + unknown < needed
    return Votes(won=False, left_ms=left_ms[needed - len(mine) - 1], split=split, now_ms=now_ms)


def start_of(answer: Any) -> tuple[int, int]:
    """Return the id of the start of a server that does not vote, and ms until it may."""
    return (answer[4], answer[1]) if isinstance(answer, list) and answer[3] == 2 else (0, 0)


def why_silent(answer: Any) -> str:
    """Return why a server did not vote on a lock; ``""`` if it did."""
    start, left_ms = start_of(answer)
    if left_ms:
        return "was restarted and does not vote yet (REJOIN_DELAY)"
    return "was restarted, and too few others answered to send it the last fence" if start else ""


def taken_over(answers: Answers) -> Any:
    """Return the ``Votes`` in answers of ``quorum_acquire.lua`` to a takeover."""
    won = agree(answers, [item[0] for item in received(answers) if item[3] < 2])
    return won if won is PENDING else Votes(won)


def agree(answers: Answers, known: Answers | None = None) -> Any:
    """Return whether a majority answered yes: anything but 0 and ``None``."""
    known = received(answers) if known is None else known
    needed = majority(len(answers))
    yes = sum(bool(item) for item in known)
    decided = yes >= needed or len(known) - yes > len(answers) - needed
    return yes >= needed if decided else PENDING


def last_fence(answers: Answers) -> Any:
    """Return the greatest fence ever given, from answers of ``quorum_fence.lua``.

    Any majority of servers that vote knows it; if all servers have answered, none knows a greater.
    """
    known = received(answers)
    voting = sum(votes for _, votes in known)
    decided = voting >= majority(len(answers)) or len(known) == len(answers)
    return max(fence for fence, _ in known) if decided else PENDING


def everybody(answers: Answers) -> Any:
    """Return all answers, ``None`` for a failure, once all servers have answered or failed."""
    if PENDING in answers or len(received(answers)) < majority(len(answers)):
        return PENDING
    return [None if isinstance(item, Exception) else item for item in answers]


def leases(answers: Answers) -> Any:
    """Return what is left of each lease, like ``renew.lua``, but ``None`` where too few know."""
    known = received(answers)
    needed = majority(len(answers))
    if len(known) < needed:
        return PENDING
    found: list[int | None] = []
    for left in zip(*known, strict=True):
        held = [item for item in left if item > -2]
        if len(held) >= needed:
            least = _least(held, needed)
            found.append(least if least < 0 else max(0, trusted(least)))
        elif len(left) - len(held) > len(answers) - needed:
            found.append(-2)
        elif PENDING in answers:
            return PENDING
        else:
            found.append(None)
    return found if any(item is not None for item in found) else PENDING


def holders(answers: Answers) -> Any:
    """Return the holders of locks, like ``inspect.lua``.

    A lock is held by the token that a majority names. If servers failed, a token that could have a
    majority with them is shown as well.
    """
    known = received(answers)
    needed = majority(len(answers))
    if len(known) < needed:
        return PENDING
    found: list[Any] = [max(item[0] for item in known)]
    for first in range(1, len(known[0]), 3):
        said = [item[first : first + 3] for item in known]
        held = [(value, left) for value, left, _ in said if value is not None]
        tokens = Counter(value.split(b" ", 1)[0] for value, _ in held)
        token, votes = max(tokens.items(), key=lambda item: item[1], default=(b"", 0))
        waiters = max((item[2] for item in said if item[2] is not None), default=None)
        if votes < needed:
            if votes + len(answers) - len(known) < needed:
                found += [None, -2, waiters]
                continue
            if PENDING in answers:
                return PENDING
        votes_for = [item for item in held if item[0].split(b" ", 1)[0] == token]
        value = Counter(value for value, _ in votes_for).most_common(1)[0][0]
        found += [value, _least([left for _, left in votes_for], needed), waiters]
    return found


def _least(left: Sequence[int], needed: int) -> int:
    """Return how many ms of a lease a number of servers, or all, have left; -1 for no expiry."""
    longest_first = sorted(left, key=lambda ms: -math.inf if ms < 0 else -ms)
    return longest_first[min(needed, len(left)) - 1]


def queue(answers: Answers) -> Any:
    """Return the waiters, like ``waiting.lua``, the longest waiting first."""
    if everybody(answers) is PENDING:
        return PENDING
    known = received(answers)
    positions: dict[bytes, int] = {}
    for item in known:
        for position, entry in zip(map(int, item[1::2]), item[2::2], strict=True):
            positions[entry] = min(position, positions.get(entry, position))
    ordered = sorted(positions.items(), key=itemgetter(1))
    return [max(item[0] for item in known), *chain(*((at, entry) for entry, at in ordered))]


def history(answers: Answers) -> Any:
    """Return pages of the audits of all servers, like ``history.lua``."""
    known = everybody(answers)
    return known if known is PENDING else [page for item in known for page in item or ()]
