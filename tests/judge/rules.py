"""The rules, which yield for a lock what can't have happened, and the handles that are against it.

How a lock is held is judged by the search of Wing and Gong for an order in which all can have
happened one by one, as Lowe made it fast: the states that are possible are carried from the end of
one operation to that of the next. When nothing is under way, one is left.
"""

from collections.abc import Iterator
from math import inf

from tests.judge.operations import History, Operation

BUDGET = 100_000
"""States at the end of an operation beyond which the search is given up."""
Found = Iterator[tuple[Operation, set[str]]]
State = tuple[frozenset[tuple[str, str]], int | None, int, frozenset[Operation]]
"""Who has the lock and how; the operator's limit; the last fence; what is done, but not over."""


def fences(history: History, name: str) -> Found:
    """Fences rise as holds begin."""
    later = first = Operation("", "", "", inf, {})  # what has the next fence, and what ended first
    for one in history.fenced[name]:
        if first.end < one.start or later.fence == one.fence:
            yield one, {first.hold, later.hold}
        later, first = one, min(first, one, key=lambda one: one.end)


def order(history: History, name: str) -> Found:
    """A waiter that was queued before a request is served before it, as their fences tell."""
    rise, served = not any(fences(history, name)), inf
    for one in history.fenced[name]:
        served = min(one.end, served if rise else inf)  # when it was, at the latest
        for other in history.waiters[name] if one.kind == "take" else ():
            waits = other.queued < one.start < other.answer["time"]
            if waits and (other.fence or inf) > one.fence and served < history.leaves(other):
                yield one, {other.hold}


def holding(history: History, name: str) -> Found:
    """As many have a lock as may, for as long as they were promised it."""
    search = Search(history, by_fence=not any(fences(history, name)))
    moments = [(one.start, 0, one) for one in history.locks[name]]
    moments += [(one.end, 1, one) for one in history.locks[name] if one.end < inf]
    states: set[State] = {(frozenset(), None, 0, frozenset())}
    for now, over, one in sorted(moments, key=lambda moment: moment[:2]):
        if not over:
            search.pending.append(one)
        elif after := search.finish(one, states, now):
            states = after
            search.pending.remove(one)
        else:
            yield one, {hold for holders, *_ in states for hold, _ in holders}
            return


class Search:
    def __init__(self, history: History, *, by_fence: bool) -> None:
        self._over, self._by_fence = history.over, by_fence
        self.pending: list[Operation] = []  # what has begun and is not over

    def finish(self, last: Operation, states: set[State], now: float) -> set[State]:
        """Return the states in which an operation has happened that is over now."""
        todo, seen, found = [*states], set[State](), set[State]()
        while todo:
            state = self._settled(todo.pop(), now)
            if last in state[3]:
                found.add((*state[:3], state[3] - {last}))
            elif state not in seen:
                seen.add(state)
                todo += (after for one in self.pending for after in self._step(state, one))
                if len(seen) > BUDGET:
                    raise OverflowError(f"it is unknown if this can have happened: {last.asked}")
        return found

    def _settled(self, state: State, now: float) -> State:
        """Return a state after what helps all others: holds are read, and end if they may."""
        holders, limit, fence, done = state
        held = dict(holders)
        done |= {one for one in self.pending if one.kind == "keep" and one.hold in held}
        shows = [one for one in self.pending if one.shows and one not in done]
        needed = {hold for one in shows for hold in (one.hold, one.of)}
        left = {one for one in held if one in needed or self._over[one] > now}
        return frozenset(one for one in holders if one[0] in left), limit, fence, done

    def _step(self, state: State, one: Operation) -> Iterator[State]:
        """Yield the state after an operation, if it can happen."""
        holders, limit, fence, done = state
        modes, former = dict(holders), one.of or one.hold
        if one in done or (self._by_fence and (one.fence or inf) <= fence):
            return
        if one.kind == "limit":
            limit = one.asked.get("limit")  # a loss of data clears it
        elif one.kind == "take":
            most = one.asked["limit"] if limit is None or one.asked["limit"] is None else limit
            alone = modes and "exclusive" in (one.asked["mode"], *modes.values())
            if alone or (most is not None and len(modes) >= most):
                return
            modes[one.hold] = one.asked["mode"]
        elif former in modes:
            mode = modes.pop(former)
            modes[one.hold] = "shared" if one.kind == "share" else one.asked.get("mode", mode)
        else:
            return
        done = done if one.end == inf else done | {one}
        yield frozenset(modes.items()), limit, one.fence or fence, done
