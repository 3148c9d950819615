"""Whether there is an order in which the operations on a lock can have happened one by one.

This is the search of Wing and Gong as Lowe made it fast: the states that are possible are carried
from the end of one operation to that of the next, each once; when nothing is under way one is left.
What helps all others and harms none is done at once: a hold ends as soon as it may, and is read as
soon as it is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import inf

from tests.judge.operations import BEGINNINGS, History, Operation

BUDGET = 1_000_000
"""States of one lock after which the search is given up."""
Holders = frozenset[tuple[str, str]]
State = tuple[Holders, int | None, int, frozenset[Operation]]
"""Who has the lock and how; the operator's limit; the last fence; what is done, but not over."""


class Search:
    """The search for one lock, by some of the rules."""

    def __init__(self, history: History, name: str, rules: Iterable[str]) -> None:
        self.states = 0
        self._over, self._rules = history.over, set(rules)
        self._operations = history.locks[name]
        if "holding" not in self._rules:
            self._operations = [one for one in self._operations if one.kind in BEGINNINGS]
        self._pending: list[Operation] = []
        self._left: defaultdict[str, set[Operation]] = defaultdict(set)
        """What is to come yet of what shows a hold."""
        for one in self._operations:
            if one.kind != "gone" and one.end < inf:
                self._left[one.hold].add(one)
                self._left[one.of].add(one)

    def run(self) -> tuple[Operation, set[str]] | None:
        """Return the operation that can't have happened, if there is one, and what is against it:
        who had the lock, and who was next."""
        moments = [(one.start, 0, one) for one in self._operations]
        moments += [(one.end, 1, one) for one in self._operations if one.end < inf]
        states: set[State] = {(frozenset(), None, 0, frozenset())}
        for now, over, one in sorted(moments, key=lambda moment: moment[:2]):
            if not over:
                self._pending.append(one)
                continue
            before, states = states, self._finish(one, states, now)
            if not states:
                return one, {*self._against(one, before, now)}
            self._pending.remove(one)
            self._left[one.hold].discard(one)
            self._left[one.of].discard(one)
        return None

    def _against(self, one: Operation, states: set[State], now: float) -> Iterator[str]:
        for holders, _, fence, done in states:
            yield from (hold for hold, _ in holders)
            yield from (each.hold for each in one.ahead if not self._served(each, done, now))
            yield from (each.hold for each in self._operations if each.fence == fence)

    def _finish(self, last: Operation, states: set[State], now: float) -> set[State]:
        """Return the states in which an operation has happened that is over now."""
        seen = {self._settled(state, now) for state in states}
        todo, found = [*seen], set[State]()
        while todo:
            if self.states + len(seen) > BUDGET:
                raise OverflowError
            state = todo.pop()
            if last in state[3]:
                found.add((*state[:3], state[3] - {last}))
                continue
            for one in self._pending:
                after = None if one in state[3] else self._step(state, one, now)
                if after is not None and (after := self._settled(after, now)) not in seen:
                    seen.add(after)
                    todo.append(after)
        self.states += len(seen)
        return found

    def _settled(self, state: State, now: float) -> State:
        """Return a state after what can be done at once."""
        holders, limit, fence, done = state
        held = {hold for hold, _ in holders}
        done |= {one for one in self._pending if one.kind == "keep" and one.hold in held}
        held = {hold for hold in held if self._over[hold] > now or not self._left[hold] <= done}
        done |= {one for one in self._pending if one.kind == "gone" and one.hold not in held}
        return frozenset(one for one in holders if one[0] in held), limit, fence, done

    def _step(self, state: State, one: Operation, now: float) -> State | None:
        """Return the state after an operation; ``None`` if it can't happen."""
        holders, limit, fence, done = state
        if "fences" in self._rules and one.fence is not None:
            others = (each.fence for each in self._pending if each not in done and each.fence)
            if one.fence <= fence or min(others) < one.fence:  # which would come too late
                return None
            fence = one.fence
        if "order" in self._rules and not all(self._served(each, done, now) for each in one.ahead):
            return None
        if "holding" in self._rules:
            if one.kind == "limit":
                limit = one.asked["limit"]
            elif (holders := _held(holders, one, limit)) is None:
                return None
        return holders, limit, fence, done if one.end == inf else done | {one}

    def _served(self, waiter: Operation, done: frozenset[Operation], now: float) -> bool:
        """Return whether a waiter has the lock, or need not be in the queue any more."""
        if waiter.leaves <= now or waiter in done:
            return True
        taken = waiter.kind == "take" and waiter.end < inf
        return taken and waiter not in self._left[waiter.hold]


def _held(holders: Holders, one: Operation, limit: int | None) -> Holders | None:
    """Return who has the lock after an operation; ``None`` if it can't happen."""
    modes, mode, former = dict(holders), one.asked.get("mode"), one.of or one.hold
    if one.kind == "take":
        most = one.asked["limit"]
        most = most if most is None or limit is None else limit
        alone = modes and "exclusive" in (mode, *modes.values())
        full = most is not None and len(modes) >= most
        return None if alone or full else holders | {(one.hold, mode)}
    if one.kind in ("keep", "gone") or former not in modes:  # read where it can be, see above
        return None
    mode = "shared" if one.kind == "share" else mode or modes[former]
    return holders - {(former, modes[former])} | {(one.hold, mode)}
