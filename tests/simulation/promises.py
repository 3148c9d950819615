"""What has to hold after every step, whatever happens to processes, servers and messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.ledger import Attempt
from tests.simulation.network import Site
from tests.simulation.views import Hold, View, stored

if TYPE_CHECKING:
    from tests.simulation.world import Broken, World

DELAY = 1.5
"""Seconds for which one stopped process may delay others."""
FREE = 0.15
"""Seconds for which a lock may be free while somebody waits, if nothing was disturbed."""
RECOVERED = 2.5
"""Seconds after a fault at which a process is heard again, and waits as the others do."""
CAME_BACK = 0.5
"""Seconds within which those who come back to their places may stand in another order."""
NOTICED = 0.1
"""Seconds after which a waiter has noticed that its process lost its connection before."""
ANSWERED = 0.5
"""Seconds by which a wait may end late."""
ANSWERED_DISTURBED = 8.0
"""The same with faults: while a server does not answer, calls are sent again."""


class Promise:
    """Something that has to hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = world.ledger

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
        """Return the error that tells it."""
        return self.world.breaks(type(self).__name__, text)


class OneHolder(Promise):
    """A lock has one holder within its lease."""

    def stepped(self) -> None:
        if len(self.ledger.holding) < 2:
            return
        now = self.world.machine.now
        holders: dict[str, Attempt] = {}
        for attempt in self.ledger.holding:
            if attempt.counts_until <= now:
                continue
            other = holders.setdefault(attempt.name, attempt)
            if other is not attempt:
                excuse = attempt.excuse or other.excuse
                if not excuse:
                    raise self.broken(f"{other} and {attempt} both hold {attempt.name}")
                if not (attempt.excuse and other.excuse):
                    self.world.expect(f"two holders: {excuse}")
                other.excuse = attempt.excuse = excuse


class RisingFences(Promise):
    """Each hold has a greater fence than all before it."""

    def __init__(self, world: World, *, by_clock: bool = True) -> None:
        super().__init__(world)
        self._by_clock = by_clock
        self._last: dict[str, tuple[int, Attempt]] = {}

    def has(self, attempt: Attempt) -> None:
        if attempt.excuse or attempt.counts_until <= self.world.machine.now:
            return
        fence = attempt.lease.fence
        last, other = self._last.get(attempt.name, (0, attempt))
        if fence <= last:
            if why := self._excuse():
                self.world.expect(f"fences fall: {why}")
                return
            raise self.broken(f"{attempt} has {fence} after {last} of {other}")
        self._last[attempt.name] = fence, attempt

    def _excuse(self) -> str:
        back = any(site.stepped_back_ms for site in self.world.sites)
        # A slot may have moved to a node whose clock is behind.
        behind = self.world.has_slots and len({site.offset for site in self.world.sites}) > 1
        if self.world.forgotten and (back or behind):
            return "a server lost data, and its clock was set back"
        if self.world.stale and not self._by_clock:
            return "a server lost the last fence, but not the fence before"
        return ""


class BackedBelief(Promise):
    """What a holder believes of its lease ends before the lease on the server does.

    Nobody but the holder, the end of the lease or an operator ends a hold.
    """

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
            hold = self._view.hold(attempt.name)
            if hold is None or hold.token != attempt.token:
                raise self.broken(f"{attempt} counts on {attempt.name}, where there is {hold}")
            if until > hold.end:
                raise self.broken(
                    f"{attempt} counts on {attempt.name} until {until - 1000:.6f}, "
                    f"but its lease ends at {hold.end - 1000:.6f}"
                )


class FirstComeFirstServed(Promise):
    """A lock goes to the first in line whose process runs, and nobody loses a place.

    Who is gone, while its process runs, is served twice at most. After a loss of data those come
    back to their places who were told that they wait; who was not joins as if it was new.
    """

    def __init__(self, world: World, view: View, *, tells_the_dead: bool = False) -> None:
        super().__init__(world)
        self._view = view
        self._tells_the_dead = tells_the_dead  # at once, so that nothing is handed off to them
        self._before: dict[str, tuple[str, list[str]]] = {}
        self._joined_at: dict[str, float] = {}  # when each was first seen in a queue
        self._served: set[str] = set()  # who had the lock, so that it may join anew
        self._served_in_vain: dict[str, int] = {}  # how often, by the token of who is gone

    def forgotten(self) -> None:
        self._before.clear()

    def stepped(self) -> None:
        for name in self.world.names:
            hold = self._view.hold(name)
            holder, queue = hold.token if hold else "", self._view.queue(name)
            if name not in self._before:
                self._note(queue)
            former, line = self._before.setdefault(name, (holder, queue))
            if holder == former and queue == line:
                continue
            self._before[name] = holder, queue
            if holder != former and holder:
                self._served.add(holder)
                self._check_turn(name, holder, line)
                if hold is not None and hold.unclaimed and self._tells_the_dead:
                    self._check_life(name, holder)
            self._check_places(name, former, holder, line, queue)

    def _check_turn(self, name: str, holder: str, line: list[str]) -> None:
        attempt = self.ledger.by_token.get(holder)
        if attempt is None or attempt.ahead:
            return
        if attempt.left_at is not None and not (self.world.late or attempt.process.late):
            times = self._served_in_vain[holder] = self._served_in_vain.get(holder, 0) + 1
            if times > 2 and attempt.process.runs and not attempt.process.disturbed_until:
                raise self.broken(f"{attempt} is served again, and does not want {name}")
        for token in line[: line.index(holder)] if holder in line else line:
            if self._is_to_be_served(token):
                raise self.broken(f"{attempt} has {name} before {self.ledger.by_token[token]}")

    def _check_life(self, name: str, holder: str) -> None:
        attempt = self.ledger.by_token.get(holder)
        if attempt is not None and attempt.process.died_at < self.world.machine.now:
            raise self.broken(f"{name} is handed off to {attempt}, which is dead")

    def _check_places(
        self, name: str, former: str, holder: str, line: list[str], queue: list[str]
    ) -> None:
        kept = [token for token in line if token in queue]
        new = [token for token in queue if token not in line]
        # Who did not claim the lock in time is the first again.
        back = [former] if queue[:1] == [former] and former not in line else []
        returned = [token for token in new if token in self._joined_at and token not in back]
        joined = [token for token in new if token not in self._joined_at and token not in back]
        self._note(new)
        others = [token for token in queue if token not in returned]
        if others != back + kept + joined or any(self._is_late(token, queue) for token in returned):
            raise self.broken(f"the line for {name} was {line}, and is {queue}")
        for token in line:
            if token not in queue and token != holder and self._is_to_be_served(token):
                raise self.broken(f"{self.ledger.by_token[token]} lost its place for {name}")

    def _is_late(self, token: str, queue: list[str]) -> bool:
        """Whether one that has come back stands behind another that joined long after it."""
        own = self.ledger.by_token.get(token)
        if own is None or not own.waits() or token in self._served:
            return False  # a call that was late, or one that begins again
        if self.world.forgotten and own.joins():
            return False
        if any(site.offset or site.stepped_back_ms for site in self.world.sites):
            return False  # since when they wait is told by the server's clock
        # What counts is since when each waits, which is between its request and its joining.
        joined_at = self._joined_at[token]
        for each in queue[: queue.index(token)]:
            other = self.ledger.by_token.get(each)
            asked_later = other and other.requested_at > own.requested_at + CAME_BACK
            if asked_later and self._joined_at[each] > joined_at + CAME_BACK:
                return True
        return False

    def _note(self, queue: list[str]) -> None:
        for token in queue:
            self._joined_at.setdefault(token, self.world.machine.now)

    def _is_to_be_served(self, token: str) -> bool:
        attempt = self.ledger.by_token.get(token)
        if attempt is None or attempt.token != token or not attempt.waits() or self.world.stale:
            return False
        now = self.world.machine.now
        disturbed = max(attempt.process.disturbed_until, self.world.disturbed_until)
        if disturbed and now < attempt.requested_at + NOTICED:
            return False
        return disturbed < now - RECOVERED and now < attempt.until


class NoWaitInVain(Promise):
    """Nobody waits beside a lock that nobody uses.

    A lock whose lease has ended goes to a waiter at once. One that was handed off to a stopped
    process, or whose release is under way, may be unused for a while.
    """

    def __init__(
        self,
        world: World,
        view: View,
        *,
        free: float = FREE,
        delay: float = DELAY,
    ) -> None:
        super().__init__(world)
        self._view = view
        self._free = free
        self._delay = delay
        self._since: dict[str, tuple[str, float, Attempt | None]] = {}

    def stepped(self) -> None:
        if not self.ledger.waiting:
            self._since.clear()
            return
        now = self.world.machine.now
        for name in self.world.names:
            waiter = self._waiter(name)
            state, allowed = ("", None) if waiter is None else self._allowed(name)
            if waiter is None or allowed is None:
                self._since.pop(name, None)
                continue
            before, since, former = self._since.get(name, ("", now, None))
            hold = self._view.hold(name)
            holder = None if hold is None else self.ledger.by_token.get(hold.token)
            if state != before or (former is not holder and self._gave_back(former)):
                since = now
            self._since[name] = state, since, holder
            assert waiter.asked_at is not None
            calm = max(since, waiter.asked_at, self._disturbed_until(waiter))
            if now > calm + allowed:
                raise self.broken(
                    f"{waiter} waits for {name}, which is {state} since {since - 1000:.3f}"
                )

    def _waiter(self, name: str) -> Attempt | None:
        for attempt in self.ledger.waiting:
            if attempt.name == name and attempt.waits():
                return attempt
        return None

    def _gave_back(self, former: Attempt | None) -> bool:
        """Whether the former holder released a lock itself, as its wait was over."""
        if former is None or not former.process.runs:
            return False
        return former.left_at is not None or former.until <= self.world.machine.now

    def _disturbed_until(self, waiter: Attempt) -> float:
        return max(waiter.process.disturbed_until, self.world.disturbed_until)

    def _allowed(self, name: str) -> tuple[str, float | None]:
        """Return the state of a lock, and for how many seconds it may last; ``None`` if for any."""
        hold = self._view.hold(name)
        disturbed = [item for item in self.world.processes if item.dead or item.disturbed_until]
        calm = not disturbed and not self.world.disturbed_until
        # Each attempt may be in line once more if what was over came back.
        back = self.world.stale or self.world.late or any(item.late for item in disturbed)
        slow = max(1, len(disturbed), back * len(self.ledger.attempts))
        delay = self._delay * slow + self._free
        if hold is None:
            # The claim of one that has given up keeps others from the lock until it expires.
            longer = self._stepped_back() if self.world.has_gaps else 0.0
            return "free", self._free if calm else delay + longer
        attempt = self.ledger.by_token.get(hold.token)
        if attempt is None or attempt.name != name:
            # The votes of a process that does not run end with its lease.
            return "split", None if hold.token or disturbed else delay
        # Its claim may be under way if its handle has it.
        if hold.unclaimed and attempt.lock._lease is None:
            if calm:
                return f"unclaimed by {attempt}", self._free
            return "unclaimed", delay + self._stepped_back()
        if self._is_to_be_released(attempt):
            late = attempt.process.disturbed_until - self.world.machine.now
            # A release that could not be sent within the lease is not sent any more.
            longer = self._stepped_back() if self.world.disturbed_until else 0.0
            return "given up", delay + max(0.0, late) + longer
        return "held", None

    def _is_to_be_released(self, attempt: Attempt) -> bool:
        """Whether nobody wants a hold any more, and the server can be told."""
        if attempt.left_at is None or attempt.excuse or not attempt.process.runs:
            return False
        return not (attempt.process.late or self.world.late)  # a late call takes it for a lease

    def _stepped_back(self) -> float:
        """Return by how many seconds a server's clock was set back."""
        return max((site.stepped_back_ms for site in self.world.sites), default=0) / 1000


class PromptAnswers(Promise):
    """Who does not want to wait for longer is told in time."""

    def answered(self, attempt: Attempt) -> None:
        process = attempt.process
        if math.isinf(attempt.until) or process.dead:
            return
        now = self.world.machine.now
        disturbed = max(process.disturbed_until, self.world.disturbed_until)
        patience = ANSWERED_DISTURBED if disturbed else ANSWERED
        if now > max(attempt.until, disturbed) + patience:
            raise self.broken(f"{attempt} was answered {now - attempt.until:.2f} s late")


class BoundedKeys(Promise):
    """Nothing outlives its bound on a server."""

    BOUNDS = (
        (b"lock-queue", 60_000),
        (b"lock-heard", 120_000),
        (b"lock-claim", 5_000),
        (b"lock-grant", 60_000),
        (b"lock-index", None),
        (b"lock-fence", None),
        (b"lock-audit", None),
        (b"lock-server", None),
    )
    """For how many milliseconds a key may live, by what it begins with; ``None`` for ever."""

    def __init__(self, world: World, longest: float | None) -> None:
        super().__init__(world)
        self._longest_ms = None if longest is None else round(longest * 1000)
        self._known: dict[bytes, int | None] = {}

    def stepped(self) -> None:
        back = max((site.stepped_back_ms for site in self.world.sites), default=0)
        for site in self.world.sites:
            server = site.server
            now = server.now_ms()
            for key in list(server.data):
                bound = self._bound(key)
                end = server.ends.get(key)
                if bound is None or (end is None and self._is_endless(server.data[key])):
                    continue
                if end is None or end - now > bound + back:
                    left = "for ever" if end is None else f"for {end - now} ms"
                    raise self.broken(f"{key!r} of server {site.name} stays {left}")

    def _bound(self, key: bytes) -> int | None:
        if key not in self._known:
            bounds = [bound for start, bound in self.BOUNDS if key.startswith(start)]
            self._known[key] = bounds[0] if bounds else self._longest_ms
        return self._known[key]

    def _is_endless(self, value: Any) -> bool:
        """Whether it is a lock that is to be held for ever."""
        token = value.split(b" ", 1)[0].decode() if isinstance(value, bytes) else ""
        attempt = self.ledger.by_token.get(token)
        return attempt is not None and attempt.lock.timeout is None


class Indexed(Promise):
    """The index names every held lock, so that operators see it."""

    def __init__(self, world: World, place: Callable[[str], tuple[Site, str]]) -> None:
        super().__init__(world)
        self._place = place

    def stepped(self) -> None:
        for name in self.world.names:
            site, tag = self._place(name)
            server = site.server
            if stored(server, f"lock{tag}:{name}".encode()) is None:
                continue
            index = stored(server, f"lock-index{tag}".encode()) or {}
            if name.encode() not in index and not self.world.disturbed_until:
                raise self.broken(f"{name} is held, but not in the index of server {site.name}")


class NothingLeft(Promise):
    """When all is over, no lock is held by somebody who gave it up."""

    def __init__(self, world: World, view: View) -> None:
        super().__init__(world)
        self._view = view

    def ended(self) -> None:
        for name in self.world.names:
            attempt = self._leftover(name)
            if attempt is None:
                continue
            if not attempt.excuse:
                raise self.broken(f"{attempt} has left {name}, and still holds it")
            self.world.expect(f"held after its release: {attempt.excuse}")

    def pending(self) -> bool:
        """Whether something still has to be cleaned up."""
        return any(self._leftover(name) for name in self.world.names)

    def _leftover(self, name: str) -> Attempt | None:
        hold: Hold | None = self._view.hold(name)
        if hold is None or hold.unclaimed:  # whoever looks takes it back, once its claim is due
            return None
        attempt = self.ledger.by_token.get(hold.token)
        if attempt is None or attempt.left_at is None or attempt.process.dead:
            return None
        late = attempt.process.late or self.world.late  # a late call takes a lock for a whole lease
        back = any(site.stepped_back_ms for site in self.world.sites)
        longer = back and attempt.lease_until <= self.world.machine.now  # it lasts on the server
        return None if late or longer else attempt
