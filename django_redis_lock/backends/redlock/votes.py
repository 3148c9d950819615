"""What the answers of several servers come to: which of them a majority agrees on.

Each function is given one answer a server, in which an exception stands for a failure and
``PENDING`` for what has not come yet, and returns what they come to, ``PENDING`` while the missing
ones could change it, or raises ``NoQuorum``. Servers are independent: none knows of another, so
what fewer than a majority say counts for nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django_redis_lock.backends.redlock.rounds import PENDING

DRIFT = 0.01
"""The part of a lease by which clocks may run differently while it lasts."""
DRIFT_MS = 2
"""Milliseconds more, for what is rounded: expiry is exact to one of them."""

Answers = Sequence[Any]


class NoQuorum(Exception):
    """Too few servers answered to know what a majority says."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.answers = list(answers)


def majority(servers: int) -> int:
    """Return how many servers are a majority: any two majorities have one in common."""
    return servers // 2 + 1


def trusted(lease_ms: float) -> int:
    """Return for how many milliseconds a lease can be relied on by another clock."""
    return math.floor(lease_ms - lease_ms * DRIFT - DRIFT_MS)


def given(answers: Answers) -> list[Any]:
    """Return the answers that are some."""
    return [item for item in answers if item is not PENDING and not isinstance(item, Exception)]


@dataclass(frozen=True)
class Votes:
    """What came of asking for a lock."""

    won: bool
    left_ms: float = 0.0
    """For a lock that another holds: until a majority could be free. Infinite without end."""
    split: bool = False
    """Nobody has a majority: callers came at the same time, and each has some of the votes."""
    now_ms: int = 0


def count_votes(answers: Answers) -> Any:
    """Return the ``Votes`` of answers as ``quorum_acquire.lua`` gives them."""
    needed = majority(len(answers))
    voters = [item for item in given(answers) if item[3] < 2]
    mine = [item for item in voters if item[0]]
    others = [item for item in voters if not item[0]]
    missing = sum(item is PENDING for item in answers)
    if len(mine) >= needed:
        return Votes(won=True, now_ms=_now_ms(voters))
    if len(mine) + missing >= needed:
        return PENDING
    if len(voters) < needed:
        if len(voters) + missing >= needed:
            return PENDING
        raise NoQuorum(answers)
    holders = Counter(item[4] for item in others)
    unknown = len(answers) - len(voters)
    left = sorted(math.inf if item[1] < 0 else item[1] for item in others)
    return Votes(
        won=False,
        left_ms=left[needed - len(mine) - 1],
        split=max(holders.values()) + unknown < needed,
        now_ms=_now_ms(voters),
    )


def _now_ms(voters: Answers) -> int:
    return int(max(item[2] for item in voters) // 1000)


def count_passed_on(answers: Answers) -> Any:
    """Return whether a lock was taken over, from answers as of ``quorum_take_over.lua``."""
    return _poll(answers, {index: item[0] for index, item in _voters(answers)})


def _voters(answers: Answers) -> Iterable[tuple[int, Any]]:
    for index, item in enumerate(answers):
        if item is not PENDING and not isinstance(item, Exception) and item[0] >= 0:
            yield index, item


def agree(answers: Answers) -> Any:
    """Return whether a majority answered yes: a number that is not 0, or anything but ``None``."""
    return _poll(answers, dict(enumerate(answers)))


def _poll(answers: Answers, said: dict[int, Any]) -> Any:
    needed = majority(len(answers))
    known = given(list(said.values()))
    yes = sum(bool(item) for item in known)
    if yes >= needed:
        return True
    if len(known) - yes > len(answers) - needed:
        return False
    if any(item is PENDING for item in answers):
        return PENDING
    raise NoQuorum(answers)


def in_doubt(answers: Answers, again: Sequence[bool]) -> bool:
    """Whether a majority may have answered yes, where those that were asked ``again`` tell nothing.

    A release is answered 0 when the first sending did the work and its reply was lost.
    """
    no = sum(bool(item == 0) and not asked for item, asked in zip(answers, again, strict=True))
    return no <= len(answers) - majority(len(answers))


def arrived(answers: Answers) -> Any:
    """Return the greatest answer once a majority has answered."""
    known = given(answers)
    if len(known) >= majority(len(answers)):
        return max(known)
    if len(known) + sum(item is PENDING for item in answers) < majority(len(answers)):
        raise NoQuorum(answers)
    return PENDING


def last_fence(answers: Answers) -> Any:
    """Return the greatest fence that was given, from answers as ``quorum_fence.lua`` gives them.

    A majority knows it that votes: so many have not forgotten it, or have learned it since. Where
    all have answered nobody knows more.
    """
    known = given(answers)
    missing = sum(item is PENDING for item in answers)
    voting = sum(votes for _, votes in known)
    if voting >= majority(len(answers)) or len(known) == len(answers):
        return max(fence for fence, _ in known)
    if missing and (
        voting + missing >= majority(len(answers)) or len(known) + missing == len(answers)
    ):
        return PENDING
    raise NoQuorum(answers)


def all_told(answers: Answers) -> Any:
    """Return that all have answered, whatever it was."""
    return PENDING if any(item is PENDING for item in answers) else True


def everybody(answers: Answers) -> Any:
    """Return all answers, ``None`` for a failure, once all servers have answered or failed."""
    if any(item is PENDING for item in answers):
        return PENDING
    if len(given(answers)) < majority(len(answers)):
        raise NoQuorum(answers)
    return [None if isinstance(item, Exception) else item for item in answers]


def leases(answers: Answers) -> Any:
    """Return what is left of each lease, as ``renew.lua`` answers.

    ``None`` is for a lease of which too few servers know, beside others that are known.
    """
    known = given(answers)
    needed = majority(len(answers))
    missing = any(item is PENDING for item in answers)
    if len(known) < needed:
        if missing:
            return PENDING
        raise NoQuorum(answers)
    found: list[int | None] = []
    for left in zip(*known, strict=True):
        held = sorted((math.inf if item < 0 else item for item in left if item > -2), reverse=True)
        if len(held) >= needed:
            least = held[needed - 1]  # so long does a majority keep it
            found.append(-1 if math.isinf(least) else max(0, trusted(least)))
        elif len(left) - len(held) > len(answers) - needed:
            found.append(-2)
        elif missing:
            return PENDING
        else:
            found.append(None)
    if not any(item is not None for item in found):
        raise NoQuorum(answers)
    return found


def holders(answers: Answers) -> Any:
    """Return who holds locks, as ``inspect.lua`` answers.

    A lock is held by the token that a majority names. Where servers are missing, one is shown that
    could have a majority with them.
    """
    known = given(answers)
    needed = majority(len(answers))
    missing = any(item is PENDING for item in answers)
    if len(known) < needed:
        if missing:
            return PENDING
        raise NoQuorum(answers)
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
            if missing:
                return PENDING
        votes_for = [item for item in held if item[0].split(b" ", 1)[0] == token]
        left = sorted((math.inf if left < 0 else left for _, left in votes_for), reverse=True)
        least = left[min(needed, len(left)) - 1]
        value = Counter(value for value, _ in votes_for).most_common(1)[0][0]
        found += [value, -1 if math.isinf(least) else least, waiters]
    return found


_SINCE = re.compile(rb'"since":(\d+)}$')


def line(answers: Answers) -> Any:
    """Return who waits, as ``waiting.lua`` answers, by the time since when they do."""
    known = everybody(answers)
    if known is PENDING:
        return PENDING
    known = given([item for item in known if item is not None])
    entries = dict.fromkeys(entry for item in known for entry in item[1:])
    return [max(item[0] for item in known), *sorted(entries, key=_since)]


def _since(entry: bytes) -> float:
    found = _SINCE.search(entry)
    return math.inf if found is None else int(found[1])


def history(answers: Answers) -> Any:
    """Return pages of the audits of all servers, as ``history.lua`` answers."""
    known = everybody(answers)
    return known if known is PENDING else [page for item in known for page in item or ()]
