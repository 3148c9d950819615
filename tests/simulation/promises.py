"""What has to hold after every step, whatever happens to processes, servers and messages."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tests.simulation.ledger import Attempt
from tests.simulation.server import Hash
from tests.simulation.views import Hold, ServerView, View, stored

if TYPE_CHECKING:
    from tests.simulation.world import Broken, World

DELAY = 1.5
"""Seconds for which one stopped process may delay others."""
FREE = 0.15
"""Seconds for which a lock may be free while somebody waits, if nothing was disturbed."""
FORGOTTEN = 2.0
"""Seconds after which nothing is handed off to a process that is dead, if others are heard."""
RECOVERED = 2.5
"""Seconds after a fault at which a process is heard again, and waits as the others do."""
NOTICED = 0.1
"""Seconds after which a waiter has noticed that its process lost its connection before."""
BLOCKED = 6.5
"""Seconds for which a waiter whose process does not run may keep others from sharing a lock."""
STAYS = 600_000
"""Milliseconds after which the keys of waiters expire, unless refreshed."""
OF_WAITERS = b"lock-queue", b"lock-due", b"lock-waiters", b"lock-tokens"
"""How keys begin that are there for as long as a message is parked."""
ANSWERED = 0.5
"""Seconds by which a wait may end late."""
ANSWERED_DISTURBED = 8.0
"""The same with faults: while a server does not answer, calls are sent again."""


class Promise:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = world.ledger

    @property
    def partial(self) -> bool:
        """Whether a script may have been carried out in part, as keys had left a cluster's node,
        and workers have not mended that yet."""
        world = self.world
        return world.has_slots and world.machine.now < world.disturbed_until + RECOVERED

    def stepped(self) -> None:
        """Check it after a step that has changed something."""

    def ended(self) -> None:
        """Check it when all is over."""

    def forgotten(self) -> None:
        """Note that a server has other data than before, by a fault."""

    def has(self, attempt: Attempt) -> None:
        """Check it when somebody was told to have a lock."""

    def answered(self, attempt: Attempt) -> None:
        """Check it when somebody got an answer, whatever it is."""

    def broken(self, text: str) -> Broken:
        return self.world.breaks(type(self).__name__, text)


class OneHolder(Promise):
    """A lock has one holder within its lease, or no more than the limit as the last one came."""

    def __init__(self, world: World, view: View | None = None) -> None:
        super().__init__(world)
        self._view = view  # of locks that can be shared
        self._limits: dict[str, tuple[int, float | None]] = {}
        """The fence of each grant by token, and the limit at that time."""
        self._places: dict[Attempt, tuple[int, float | None]] = {}
        """The same of the parked messages whose locks were taken over."""

    def has(self, attempt: Attempt) -> None:
        if attempt.place:
            self._places[attempt] = self._limits[attempt.place]

    def stepped(self) -> None:
        if self._view is not None:
            self._note_limits(self._view)
        if len(self.ledger.holding) < 2:
            return
        now = self.world.machine.now
        holders: dict[str, list[Attempt]] = {}
        for attempt in self.ledger.holding:
            if attempt.counts_until > now:
                holders.setdefault(attempt.name, []).append(attempt)
        for name, several in holders.items():
            if len(several) > 1:
                self._check(name, sorted(several, key=self._fence_of))

    def _check(self, name: str, holders: list[Attempt]) -> None:
        """Check those who count on a lock, by rising fences."""
        for number, attempt in enumerate(holders):
            limit = self._limit_of(attempt)
            alone = [other for other in holders[:number] if other.limit is None]
            others = alone if number < limit else holders[:number]
            if not others:
                continue
            excuse = next((each.excuse for each in (attempt, *others) if each.excuse), "")
            if not excuse:
                raise self.broken(f"{', '.join(map(str, others))} and {attempt} all hold {name}")
            if not all(each.excuse for each in (attempt, *others)):
                self.world.expect(f"two holders: {excuse}")
            for each in (attempt, *others):
                each.forgive(excuse)

    def _fence_of(self, attempt: Attempt) -> int:
        """Return the fence with which it was granted, to its message perhaps."""
        fence: int = attempt.lease.fence
        return self._places.get(attempt, (fence, None))[0]

    def _limit_of(self, attempt: Attempt) -> float:
        """Return how many might hold a lock with this one when it got it."""
        if attempt.limit is None:
            return 1
        if attempt.place:
            return self._places[attempt][1] or 0
        if attempt.ahead or not attempt.lock.sharing.shared:
            return math.inf  # it took the place of another, or its own
        return self._limits.get(attempt.token, (0, attempt.limit))[1] or 0

    def _note_limits(self, view: View) -> None:
        for name in self.world.names:
            for hold in view.holds(name):
                if self._limits.get(hold.token, (-1, None))[0] != hold.fence:
                    self._limits[hold.token] = hold.fence, limit_in_force(view, name, hold.limit)


def limit_in_force(view: View, name: str, limit: float | None) -> float | None:
    """Return how many may hold a lock together with one who asks for this limit."""
    if limit is None or math.isinf(limit):
        return limit
    set_to = view.limit(name)
    return limit if set_to is None else set_to


class RisingFences(Promise):
    """Each hold has a greater fence than all before it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._told: dict[str, list[tuple[int, Attempt]]] = {}

    def has(self, attempt: Attempt) -> None:
        if attempt.excuse or attempt.counts_until <= self.world.machine.now:
            return
        fence = attempt.lease.fence
        told = self._told.setdefault(attempt.name, [])
        # Several may be told in another order than they got their permits.
        before = [
            (last, other)
            for last, other in told
            if last == fence or attempt.limit is None or other.limit is None
        ]
        last, other = max(before, default=(0, attempt), key=itemgetter(0))
        if fence <= last:
            if self.world.fences_may_fall:
                self.world.expect("fences fall: a server lost data, and its clock was set back")
                return
            raise self.broken(f"{attempt} has {fence} after {last} of {other}")
        told.append((fence, attempt))


class BackedBelief(Promise):
    """A holder counts its lease as ended before the server does. A hold is ended by its holder, by
    the end of its lease or by an operator, and by no other."""

    def __init__(self, world: World, view: View) -> None:
        super().__init__(world)
        self._view = view

    def has(self, attempt: Attempt) -> None:
        verify_by = attempt.lease.verify_by
        if verify_by is not None and verify_by <= self.world.machine.now:
            raise self.broken(f"{attempt} is told to have {attempt.name}, which may be taken back")

    def stepped(self) -> None:
        now = self.world.machine.now
        for attempt in self.ledger.holding:
            until = attempt.counts_until
            if until <= now or attempt.excuse:
                continue
            holds = self._view.holds(attempt.name)
            hold = next((each for each in holds if each.token == attempt.token), None)
            if hold is None:
                raise self.broken(f"{attempt} counts on {attempt.name}, where there is {holds}")
            if until > hold.end:
                raise self.broken(
                    f"{attempt} counts on {attempt.name} until {until - 1000:.6f}, "
                    f"but its lease ends at {hold.end - 1000:.6f}"
                )


class FirstComeFirstServed(Promise):
    """A lock goes to the first in line whose process runs, and nobody loses a place.

    The first messages of backlogs are in line where the turns of these are.
    Nobody gets ahead of others by sharing it, and no more wait than a caller accepts.

    Who is gone, while its process runs, is served twice at most. After a loss of data those come
    back to their positions who were told theirs; who was not joins as if it was new.
    """

    def __init__(self, world: World, view: View, *, tells_the_dead: bool = False) -> None:
        super().__init__(world)
        self._view = view
        self._tells_the_dead = tells_the_dead  # at once, so that nothing is handed off to them
        self._before: dict[str, tuple[dict[str, Hold], list[str]]] = {}
        self._known: dict[str, float] = {}  # the position in which each was seen in a queue
        self._last: dict[str, float] = {}  # the last position, by the name of the lock
        self._served_in_vain: dict[str, int] = {}  # how often, by the token of who is gone

    def forgotten(self) -> None:
        self._before.clear()

    def stepped(self) -> None:
        for name in self.world.names:
            holds = {hold.token: hold for hold in self._view.holds(name)}
            positions = self._view.positions(name)
            queue = [token for token in positions if not self._may_be_twice(token)]
            former, line = self._before.get(name, ({}, []))
            moved = any(self._known.get(token) != positions[token] for token in queue)
            if holds.keys() == former.keys() and queue == line and not moved:
                continue
            if name in self._before:
                self._check_holders(name, former, holds, line)
                self._check_places(name, holds, line, queue)
            self._before[name] = holds, queue
            for token in queue:
                self._check_position(name, token, positions[token])

    def _check_holders(
        self, name: str, former: dict[str, Hold], holds: dict[str, Hold], line: list[str]
    ) -> None:
        left = list(line)
        for holder, hold in holds.items():
            if holder not in former:
                self._check_turn(name, holder, left)
                left = [token for token in left if token != holder]
                if hold.unclaimed and self._tells_the_dead:
                    self._check_life(name, holder)

    def _check_turn(self, name: str, holder: str, line: list[str]) -> None:
        attempt = self.ledger.by_token.get(holder)
        if attempt is None or attempt.ahead or self._may_be_twice(holder):
            return
        stays = attempt.next_turn <= self._last.get(name, 0)
        if stays and not (self.world.fences_may_fall or self.partial):
            raise self.broken(f"{attempt} has {name}, and its backlog stays ahead of others")
        if attempt.left_at is not None and not (self.world.late or attempt.process.late):
            times = self._served_in_vain[holder] = self._served_in_vain.get(holder, 0) + 1
            if times > 2 and attempt.process.runs and not attempt.process.disturbed_until:
                raise self.broken(f"{attempt} is served again, and does not want {name}")
        own = self._known.get(holder, math.inf)  # it may come back to it just now
        for token in line[: line.index(holder)] if holder in line else line:
            if self._known[token] < own and self._is_to_be_served(token):
                raise self.broken(f"{attempt} has {name} before {self.ledger.by_token[token]}")

    def _may_be_twice(self, token: str) -> bool:
        """Whether it is a message that may have been lost, and parked once more."""
        attempt = self.ledger.by_token.get(token)
        return self.world.forgotten and attempt is not None and not attempt.comes_back

    def _check_life(self, name: str, holder: str) -> None:
        attempt = self.ledger.by_token.get(holder)
        if attempt is None or attempt.process.died_at > self.world.machine.now - FORGOTTEN:
            return
        others = [other for other in self.ledger.waiting if other.name == name and other.comes_back]
        heard = [other.token for other in others if other.token in self._known]
        if any(map(self._is_to_be_served, heard)):
            raise self.broken(f"{name} is handed off to {attempt}, which is dead")

    def _check_places(
        self, name: str, holds: dict[str, Hold], line: list[str], queue: list[str]
    ) -> None:
        for token in line:
            if token not in queue and token not in holds and self._is_to_be_served(token):
                raise self.broken(f"{self.ledger.by_token[token]} lost its place for {name}")
        for place, token in enumerate(queue):
            attempt = self.ledger.by_token.get(token)
            if attempt is None or token in self._known or not attempt.comes_back:
                continue
            most = attempt.lock.sharing.max_waiters
            ahead = sum(self._is_to_be_served(each) for each in queue[:place])
            # After a step of the clock no process counts as heard.
            stepped = any(site.offset or site.stepped_back_ms for site in self.world.sites)
            if most is not None and ahead >= most and not stepped:
                raise self.broken(f"{attempt} waits behind {ahead}, and accepts {most - 1}")

    def _check_position(self, name: str, token: str, position: float) -> None:
        """Check that who comes is behind all others, and who comes back is where it was."""
        known, last = self._known.get(token), self._last.get(name, 0)
        attempt = self.ledger.by_token.get(token)
        self._known[token] = position
        if position < math.inf:
            self._last[name] = max(last, position)
        if (
            attempt is None
            or attempt.token != token
            or not (attempt.comes_back and attempt.waits())
        ):
            return
        if self.world.any_late:
            return
        told = attempt.request.position
        if told and position != told:
            raise self.broken(f"{attempt} had the position {told} for {name}, and has {position}")
        if not told and not known and position <= last and not self.world.fences_may_fall:
            raise self.broken(
                f"{attempt} joins the line for {name} at {position}, not behind {last}"
            )

    def _is_to_be_served(self, token: str) -> bool:
        attempt = self.ledger.by_token.get(token)
        if attempt is None or attempt.token != token or not attempt.waits() or self.world.stale:
            return False
        now = self.world.machine.now
        disturbed = self.world.disturbs_until(attempt.process)
        if disturbed and now < attempt.requested_at + NOTICED:
            return False
        return disturbed < now - RECOVERED and now < attempt.until


class NoWaitInVain(Promise):
    """No caller waits while the lock is unused. A lock whose lease has ended goes to a waiter at
    once. One that was handed off to a stopped process, or whose release is under way, may be unused
    for a while."""

    def __init__(
        self, world: World, view: View, *, free: float = FREE, delay: float = DELAY
    ) -> None:
        super().__init__(world)
        self._view = view
        self._free = free
        self._delay = delay
        self._since: dict[str, tuple[str, float, set[Attempt]]] = {}

    def stepped(self) -> None:
        if not self.ledger.waiting:
            self._since.clear()
            return
        now = self.world.machine.now
        for name in self.world.names:
            waiter, blocked = self._waiter(name)
            state, allowed = ("", None) if waiter is None else self._allowed(name, waiter)
            if waiter is None or allowed is None:
                self._since.pop(name, None)
                continue
            allowed += blocked + waiter.looked_after
            state += " behind others" if blocked else ""
            before, since, former = self._since.get(name, ("", now, set()))
            tokens = {hold.token for hold in self._view.holds(name)} & self.ledger.by_token.keys()
            holders = {self.ledger.by_token[token] for token in tokens}
            if state != before or any(map(self._gave_back, former - holders)):
                since = now
            self._since[name] = state, since, holders
            assert waiter.asked_at is not None
            calm = max(since, waiter.asked_at, self.world.disturbs_until(waiter.process))
            if now > calm + allowed:
                raise self.broken(
                    f"{waiter} waits for {name}, which is {state} since {since - 1000:.3f}"
                )

    def _waiter(self, name: str) -> tuple[Attempt | None, float]:
        """Return who is to be served next, and for how many seconds others may keep it from that.
        They are before it in a line that they share, and their processes do not run. Or they are
        there again, though they have left, and nothing tells when that ends."""
        queue = self._view.queue(name)
        blocked = math.inf if self.world.any_late or self.world.stale else BLOCKED
        for place, token in enumerate(queue):
            attempt = self.ledger.by_token.get(token)
            if attempt is not None and attempt.name == name and attempt.waits():
                return attempt, blocked if place else 0.0
        for attempt in self.ledger.waiting:
            if attempt.name == name and attempt.waits():
                return attempt, blocked if queue else 0.0
        return None, 0.0

    def _gave_back(self, former: Attempt) -> bool:
        """Whether the former holder released a lock itself, as its wait was over."""
        if not former.process.runs:
            return False
        return former.left_at is not None or former.until <= self.world.machine.now

    def _allowed(self, name: str, waiter: Attempt) -> tuple[str, float | None]:
        """Return the state of a lock, and for how many seconds it may last; ``None`` if for any."""
        holds = self._view.holds(name)
        limit = limit_in_force(self._view, name, waiter.limit)
        most = 1 if limit is None else limit
        if most == 0:
            return "closed", None
        if len(holds) < 2 and most == 1:
            return self._state(name, holds[0] if holds else None)
        states = [self._state(name, hold) for hold in holds]
        used = [hold for hold, state in zip(holds, states, strict=True) if state[1] is None]
        if used and (
            limit is None or len(used) >= most or any(item.limit is None for item in used)
        ):
            return "held", None
        if len(holds) < most and all(hold.limit is not None for hold in holds):
            return f"open to {waiter}", self._state(name, None)[1]
        waited = [state for state in states if state[1] is not None]
        return ", ".join(state for state, _ in waited), max(each or 0.0 for _, each in waited)

    def _state(self, name: str, hold: Hold | None) -> tuple[str, float | None]:
        """Return the state of a hold, or of a lock without one, and how long it may last."""
        disturbed = [item for item in self.world.processes if item.dead or item.disturbed_until]
        calm = not disturbed and not self.world.disturbed_until
        # Each attempt may be in line once more if what was over came back.
        back = self.world.stale or self.world.any_late
        slow = max(1, len(disturbed), back * len(self.ledger.attempts))
        delay = self._delay * slow + self._free
        if hold is None:
            return "free", self._free if calm else delay
        attempt = self.ledger.by_token.get(hold.token)
        if attempt is None or attempt.name != name:
            # The votes of a process that does not run end with its lease.
            return "split", None if hold.token or disturbed else delay
        # Its claim may be under way if its handle has it.
        if hold.unclaimed and attempt.lock.lease is None:
            if calm:
                return f"unclaimed by {attempt}", self._free
            return "unclaimed", delay + self.world.stepped_back
        if self._is_to_be_released(attempt):
            late = attempt.process.disturbed_until - self.world.machine.now
            # A release that could not be sent within the lease is not sent any more.
            longer = self.world.stepped_back if self.world.disturbed_until else 0.0
            return "given up", delay + max(0.0, late) + longer
        return "held", None

    def _is_to_be_released(self, attempt: Attempt) -> bool:
        """Whether nobody wants a hold any more, and the server can be told."""
        if attempt.left_at is None or attempt.excuse or not attempt.process.runs:
            return False
        return not (attempt.process.late or self.world.late)  # a late call takes it for a lease


class PromptAnswers(Promise):
    """Who does not want to wait for longer is told in time."""

    def answered(self, attempt: Attempt) -> None:
        process = attempt.process
        if math.isinf(attempt.until) or process.dead:
            return
        now = self.world.machine.now
        disturbed = self.world.disturbs_until(process)
        patience = ANSWERED_DISTURBED if disturbed else ANSWERED
        if now > max(attempt.until, disturbed) + patience:
            raise self.broken(f"{attempt} was answered {now - attempt.until:.2f} s late")


class BoundedKeys(Promise):
    """Nothing outlives its bound on a server."""

    BOUNDS = (
        (b"lock-queue", STAYS),
        (b"lock-seen", STAYS),
        (b"lock-due", STAYS),
        (b"lock-waiters", STAYS),
        (b"lock-tokens", STAYS),
        (b"lock-inbox", STAYS),
        (b"lock-claim", 5_000),
        (b"lock-index", None),
        (b"lock-fence", None),
        (b"lock-audit", None),
        (b"lock-limits", None),
        (b"lock-parked", None),
        (b"lock-server", None),
    )
    """For how many milliseconds a key may live, by what it begins with; ``None`` for ever."""

    def __init__(self, world: World, longest: float | None) -> None:
        super().__init__(world)
        self._longest_ms = None if longest is None else round(longest * 1000)
        self._known: dict[bytes, int | None] = {}

    def stepped(self) -> None:
        back = round(1000 * self.world.stepped_back)
        if self.world.has_slots:  # the ends of permits move with a slot to another clock
            offsets = [site.offset for site in self.world.sites]
            back = max(back, round(1000 * (max(offsets) - min(offsets))))
        for site in self.world.sites:
            server = site.server
            now = server.now_ms()
            for key in list(server.data):
                bound = self._bound(key)
                end = server.ends.get(key)
                if bound is None or (end is None and self._is_endless(key, server.data[key])):
                    continue
                if end is None or end - now > bound + back:
                    left = "for ever" if end is None else f"for {end - now} ms"
                    raise self.broken(f"{key!r} of server {site.name} stays {left}")

    def _bound(self, key: bytes) -> int | None:
        if key not in self._known:
            bounds = [bound for start, bound in self.BOUNDS if key.startswith(start)]
            self._known[key] = bounds[0] if bounds else self._longest_ms
        return self._known[key]

    def _is_endless(self, key: bytes, value: Any) -> bool:
        """Whether it is a lock that is to be held for ever, by one of several perhaps."""
        if isinstance(value, Hash) and self.world.forgotten:
            return True  # perhaps that of this one
        if key.startswith(OF_WAITERS):
            return self.world.parking is not None  # which is checked there
        tokens = [value.split(b" ", 1)[0]] if isinstance(value, bytes) else list(value)
        found = [str(token, "ascii") for token in tokens]
        attempts = [self.ledger.by_token.get(self.ledger.tokens.get(each, each)) for each in found]
        return any(attempt is not None and attempt.lock.timeout is None for attempt in attempts)


class Indexed(Promise):
    """The index names every held lock, so that operators see it."""

    def __init__(self, world: World, view: ServerView) -> None:
        super().__init__(world)
        self._view = view

    def stepped(self) -> None:
        for name in self.world.names:
            site, tag = self._view.place(name)
            server, now = site.server, self.world.machine.now
            if not any(hold.end > now for hold in self._view.holds(name)):
                continue
            index = stored(server, f"lock-index{tag}".encode()) or {}
            # Those that have ended are not read.
            if index.get(name.encode(), 0) < server.now_ms() and not self.world.disturbed_until:
                raise self.broken(f"{name} is held, but not in the index of server {site.name}")


class NothingLeft(Promise):
    """When all is over, no lock is held by somebody who gave it up, and no part of one is left."""

    def __init__(self, world: World, view: View) -> None:
        super().__init__(world)
        self._view = view

    def ended(self) -> None:
        for name in self.world.names:
            for attempt in self._leftovers(name):
                if not attempt.excuse:
                    raise self.broken(f"{attempt} has left {name}, and still holds it")
                self.world.expect(f"held after its release: {attempt.excuse}")
            for token in self._view.queue(name):
                attempt = self.ledger.by_token.get(token)
                # If it was handed a lock that nobody claimed, it is there until nobody polls.
                if attempt is None or self.world.disturbs_until(attempt.process):
                    continue
                if self._is_left(attempt):
                    raise self.broken(f"{attempt} has left {name}, and still waits in line")
            if (parts := self._view.loose_parts(name)) and not self.world.forgotten:
                raise self.broken(f"of {name} are left {parts}")

    def pending(self) -> bool:
        """Whether something still has to be cleaned up."""
        return any(self._leftovers(name) for name in self.world.names)

    def _leftovers(self, name: str) -> list[Attempt]:
        return [item for hold in self._view.holds(name) if (item := self._leftover(hold))]

    def _leftover(self, hold: Hold) -> Attempt | None:
        if hold.unclaimed:  # whoever looks takes it back, once its claim is due
            return None
        attempt = self.ledger.by_token.get(hold.token)
        if attempt is None or not self._is_left(attempt):
            return None
        back = self.world.stepped_back > 0
        longer = back and attempt.lease_until <= self.world.machine.now  # it lasts on the server
        return None if longer else attempt

    def _is_left(self, attempt: Attempt) -> bool:
        """Whether nothing may be there any more of one who gave a lock up."""
        late = attempt.process.late or self.world.late  # a late call takes a lock for a whole lease
        return attempt.left_at is not None and not attempt.process.dead and not late
