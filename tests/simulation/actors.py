"""What the threads of processes do with locks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent

from django_redis_lock.exceptions import LockNotOwned, LockUnavailable
from django_redis_lock.primitives.group import LockGroup
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.drivers import TIDY_FOR
from django_redis_lock.support.arguments import EXCLUSIVE, Sharing
from tests.simulation.ledger import ROUNDING, Attempt
from tests.simulation.threads import Killed

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

Result = TypeVar("Result")
Way = Callable[[], None]
HOLDS = (0.0, 0.02, 0.3, 1.2)
"""Seconds between what a holder does."""
PATIENCE = (None, 0.0, 0.3, 2.0)
"""Seconds for which to wait at most."""
LATE = "a call that was given up came late"
SHORTER = 0.5
"""Seconds to which a holder sets its lease at times."""
MOMENT = 0.02
TOLERANCE = 0.02
"""Seconds by which an interruption may come later than the package says."""
UNTIL_NOTICED = 5.0
"""Seconds after which an operator looks for the locks of the dead."""
TICKET = 2.0
"""Seconds for which a lock is left to whoever has its ticket."""


MODES = (Sharing(True), Sharing(True, 2), EXCLUSIVE, Sharing(True, 1), Sharing(True, 3))
"""With whom to share a lock."""
CROWDS = (None, 1, 0, 2)
"""How many may wait at most."""
LIMITS = (1, 0, 2, 3)
"""What an operator sets."""


class Interrupted(BaseException):
    """What a signal handler raises."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at
        """When, by the monotonic clock."""


@dataclass(frozen=True)
class Habits:
    """What the actors of a layout do."""

    leases: Sequence[float | None] = (5.0, 0.5, 1.0, 30.0, None)
    """Seconds; the first is the usual one."""
    schemes: Sequence[str | None] = (None,)
    """The waiting schemes among which each call chooses."""
    many: bool = False
    """Whether they take several locks at once."""
    modes: Sequence[Sharing] = (EXCLUSIVE,)
    """With whom they share locks; the first is the usual one."""


class Actor:
    def __init__(self, world: World, process: Process, habits: Habits) -> None:
        self.world = world
        self.process = process
        self.habits = habits
        self.asking: dict[str, Attempt] = {}

    def run(self) -> None:
        ways: list[Way] = [self.use]
        ways += [self.use_many] * self.habits.many
        ways += [self.publish_next, self.take_from_the_dead, self.enter_twice]
        for _ in range(1 + self.world.pick(2)):
            self.carry_out(ways[self.world.pick(len(ways), 0.3)])

    def carry_out(self, way: Way) -> None:
        """Do something; an interruption ends it, as an outage does."""
        getcurrent().requested = self._requested
        try:
            way()
        except Interrupted:
            self.world.tell("{} was interrupted", self.process)
        except LockUnavailable as error:
            self.world.tell("{}: {}", self.process, error)

    # Ways to use locks.

    def use(self) -> None:
        options, patience = self._options()
        self._hold(self._lock(self._name(), **options), patience)

    def use_simply(
        self, lease: float, patience: float | None, sharing: Sharing = EXCLUSIVE
    ) -> None:
        lock = self._lock(self.world.names[0], timeout=lease, sharing=sharing)
        attempts = self._acquire(lock, patience)
        if attempts:
            getcurrent().sleep(MOMENT)
            self._leave(attempts)
            self._truly(attempts, lock.release)

    def visit(self, seconds: int) -> None:
        for _ in range(seconds):
            getcurrent().sleep(1.0)
            with contextlib.suppress(LockUnavailable):
                self.use_simply(1.0, 2.0)

    def enter_twice(self) -> None:
        options, patience = self._options()
        name = self._name()
        outer = self._lock(name, reentrant=True, **options)

        def enter_again() -> None:
            held = self.asking[name]
            if held.limit is not None and not outer.sharing.shared:  # it was downgraded
                options["sharing"] = MODES[0]
            inner = self._lock(name, reentrant=True, **options)
            attempts = self._ask(inner, 0.0)
            counts = held.counts_until
            got = inner.acquire(blocking=False)
            anew = bool(attempts[0].token)
            if not got and self.world.machine.now < counts and not held.excuse:
                raise self.world.breaks("OneHolder", f"{held} can't enter its own lock again")
            if got and not anew and not counts:
                raise self.world.breaks("OneHolder", f"{held} enters a lock again that it has lost")
            if got and anew:
                self._got(attempts)
            self._leave(attempts)
            if got:
                self._truly([], inner.release)

        self._hold(outer, patience, enter_again)

    def use_many(self) -> None:
        options, patience = self._options()
        group = LockGroup([self._lock(name, **options) for name in self.world.names])
        self._hold(group, patience)

    def publish_next(self) -> None:
        options, patience = self._options()
        name = self._name()
        lock = self._lock(name, **options)
        attempts = self._acquire(lock, patience)
        if not attempts:
            return
        ticket = None
        try:
            self._work(lock, attempts)
            self._leave(attempts)
            self.asking[name] = Attempt(self.process, lock, ahead=True)
            ticket = self._truly(attempts, lambda: lock.detach(TICKET), TICKET)
        finally:
            self._leave(attempts)
            if lock.lease is not None:
                self._truly(attempts, lock.release)
        if ticket is not None:
            self.world.tell("{} leaves {} to whoever has the ticket", attempts[0], name)
            mode = self._mode(lock.sharing)
            self.world.act(
                self.world.any_of(self.world.alive),
                "heir",
                lambda heir: heir.take(name, ticket, mode),
            )

    def take(self, name: str, token_id: str, mode: Sharing) -> None:
        lock = self._lock(name, timeout=self.habits.leases[0], sharing=mode)
        attempts = self._ask(lock, 0.0, ahead=True)
        if self._answer(attempts, lambda: lock.take_over(token_id)):
            self._use(lock, attempts)

    def take_from_the_dead(self) -> None:
        """Look who holds a lock, and free it or take it over if that process is dead."""
        name = self._name()
        holder = self._find_holder(name)
        if holder is None or not holder.pid or not self.world.processes[holder.pid - 1].dead:
            return
        self.world.tell("{} finds the holder of {} dead", self.process, name)
        if self.world.pick(2):
            self.take(name, holder.token_id, self._mode(Sharing(holder.shared, holder.limit)))
        else:
            self.process.backend.free(name, holder.token_id)

    def break_lock(self) -> None:
        name = self._name()
        holder = self._find_holder(name)
        if holder is not None:
            getcurrent().sleep(self.world.any_of(HOLDS))
            self._break(name, holder.token_id)

    def break_endless_locks(self) -> None:
        asked = False
        while not asked:
            getcurrent().sleep(UNTIL_NOTICED)
            with contextlib.suppress(LockUnavailable):
                self._break_if_endless()
                asked = True
        if len(self.habits.modes) > 1:
            self._clear_limits()

    def _break_if_endless(self) -> None:
        for name in self.world.names:
            for holder in self.process.backend.holders_of([name]):
                if holder.ttl is None:
                    self._break(name, holder.token_id)

    def change_limit(self) -> None:
        name, limit = self._name(), self.world.any_of(LIMITS)
        self.world.tell("{} sets the limit of {} to {}", self.process, name, limit)
        getcurrent().sleep(MOMENT)  # what was granted before is looked at before
        with contextlib.suppress(LockUnavailable):
            self.process.backend.set_limit(name, limit, by="operator")
        self._clear_limits()

    def _clear_limits(self) -> None:
        cleared = 0
        while cleared < 2:  # a call that set one may come late
            getcurrent().sleep(UNTIL_NOTICED)
            with contextlib.suppress(LockUnavailable):
                for limit in self.process.backend.limits():
                    self.process.backend.set_limit(limit.name, None)
                cleared += 1

    def _find_holder(self, name: str) -> Any:
        holders = list(self.process.backend.holders_of([name]))
        if not holders:
            return None
        return holders[self.world.pick(len(holders))] if len(holders) > 1 else holders[0]

    def _break(self, name: str, token_id: str) -> None:
        self.world.tell("{} breaks {}", self.process, name)
        self.world.ledger.forgive_holder(token_id, "an operator broke the lock")
        self.process.backend.force_release(name, token_id)
        # If it was just handed off, the next one may be as dead as the first.
        self.world.disturb(self.world.machine.now)

    # Steps of these.

    def _hold(self, lock: Any, patience: float | None, meanwhile: Way | None = None) -> None:
        attempts = self._acquire(lock, patience)
        if attempts:
            self._use(lock, attempts, meanwhile)

    def _acquire(self, lock: Any, patience: float | None) -> list[Attempt]:
        """Return who has the locks; nobody if they could not be acquired."""
        attempts = self._ask(lock, patience)
        self.world.tell("{} asks for {}, {} s", self.process, lock.name, patience)
        blocking = patience != 0.0
        if self._answer(attempts, lambda: lock.acquire(blocking, patience if blocking else None)):
            return attempts
        self.world.tell("{} does not get {}", self.process, lock.name)
        return []

    def _ask(self, lock: Any, patience: float | None, *, ahead: bool = False) -> list[Attempt]:
        until = math.inf if patience is None else self.world.machine.now + patience
        attempts = [Attempt(self.process, each, until=until, ahead=ahead) for each in lock._locks()]
        self.asking.update({attempt.name: attempt for attempt in attempts})
        self.world.ledger.asks(attempts)
        return attempts

    def _answer(self, attempts: list[Attempt], ask: Callable[[], bool]) -> bool:
        try:
            got = self._attend(ask)
        except BaseException:
            self._leave(attempts)
            raise
        if got:
            self._got(attempts)
        else:
            self._leave(attempts)
        return got

    def _use(self, lock: Any, attempts: list[Attempt], meanwhile: Way | None = None) -> None:
        try:
            self._work(lock, attempts)
            if meanwhile is not None:
                meanwhile()
        finally:
            self._leave(attempts)
            self._truly(attempts, lock.release)
            self.world.tell("{} is done with {}", attempts[0], lock.name)

    def _work(self, lock: Any, attempts: list[Attempt]) -> None:
        pick = self.world.pick
        lease = lock._locks()[0].lease.timeout
        for _ in range(1 + pick(2)):
            getcurrent().sleep(self.world.any_of(HOLDS))
            what = pick(5 if len(self.habits.modes) > 1 else 4, 0.4)
            if what == 1:
                self._truly(attempts, lock.ensure_held)
            elif what == 2 and lease is not None:
                self._truly(attempts, lock.reacquire, lease)
            elif what == 3 and lease is not None:
                self._shorten(lock, attempts)
            elif what == 4:
                for each in attempts:
                    self._downgrade(each)

    def _downgrade(self, attempt: Attempt) -> None:
        """Share a lock from here on, as most do, unless another handle has it, too."""
        lock, lease = attempt.lock, attempt.lock.lease
        if lease is None or lease.entries > 1 or lock.sharing.shared:
            return
        before = lease.fence, lease.shared
        self._truly([attempt], lock.downgrade)
        self.world.tell("{} shares {} from now on", attempt, attempt.name)
        rises = lease.fence > before[0] or self.world.fences_may_fall
        if not (lease.lost or before[1] or rises):
            raise self.world.breaks(
                "RisingFences", f"{attempt} had {before[0]}, and has {lease.fence}"
            )

    def _shorten(self, lock: Any, attempts: list[Attempt]) -> None:
        try:
            self._truly(attempts, lambda: lock.extend(SHORTER, replace_ttl=True), SHORTER)
        except LockUnavailable:
            for attempt in attempts:  # a call that comes late shortens the lease then
                attempt.forgive(LATE)
            raise

    def _truly(
        self, attempts: list[Attempt], act: Callable[[], Result], seconds: float = math.inf
    ) -> Result | None:
        """Return what it returns, ``None`` for a lost lock; it sets a lease of so many seconds."""
        most = self.world.machine.now + seconds
        sure = [(attempt, min(attempt.lease_until, most) - ROUNDING) for attempt in attempts]
        try:
            return self._attend(act)
        except LockNotOwned as error:
            self.world.tell("{}: {}", self.process, error)
            for attempt, until in sure:
                excused = attempt.excuse or attempt.may_lose or self.world.machine.now >= until
                if attempt.name == error.name and not excused:
                    text = f"{attempt} is told a loss: {error}"
                    raise self.world.breaks("HonestLosses", text) from error
            return None

    def _attend(self, act: Callable[[], Result]) -> Result:
        """Return what it returns. An interruption has to reach the caller, and soon."""
        me = getcurrent()
        me.interruption = None
        ended_by: BaseException | None = None
        try:
            return act()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            if me.interruption is not None and not isinstance(ended_by, Killed):
                self._check_interruption(me.interruption, ended_by)

    def _check_interruption(self, due: Interrupted, ended_by: BaseException | None) -> None:
        if not isinstance(ended_by, Interrupted):
            text = f"{self.process} was interrupted, and gets {ended_by!r}"
            raise self.world.breaks("PromptInterruptions", text)
        waited = self.world.machine.now - max(due.at, self.process.stopped_until)
        if waited > TIDY_FOR + TOLERANCE:
            text = f"{self.process} was interrupted, and waits for {waited:.3f} s"
            raise self.world.breaks("PromptInterruptions", text)

    def _got(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self.world.ledger.has(attempt)

    def _leave(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self.world.ledger.leaves(attempt)

    def _requested(self, request: Any) -> None:
        self.world.ledger.requested(self.asking[request.name], request)

    def _options(self) -> tuple[dict[str, Any], float | None]:
        """Return how to acquire a lock, and for how many seconds to wait at most."""
        pick, habits = self.world.pick, self.habits
        lease = habits.leases[pick(len(habits.leases), 0.6)]
        options: dict[str, Any] = {"timeout": lease}
        if lease is not None:
            options["auto_renew"] = bool(pick(2, 0.6))
        if len(habits.schemes) > 1:
            options["wait"] = habits.schemes[pick(len(habits.schemes))]
        if len(habits.modes) > 1:
            crowd = CROWDS[pick(len(CROWDS), 0.2)]
            options["sharing"] = habits.modes[pick(len(habits.modes))]._replace(max_waiters=crowd)
        return options, PATIENCE[pick(len(PATIENCE), 0.5)]

    def _mode(self, usual: Sharing) -> Sharing:
        """Return with whom to share a lock that somebody has left."""
        modes = (usual, *self.habits.modes)
        return modes[self.world.pick(len(modes), 0.3)] if len(modes) > 2 else usual

    def _lock(self, name: str, **options: Any) -> Lock:
        return Lock(lambda: getcurrent().process.backend, name, **options)

    def _name(self) -> str:
        names = self.world.names
        return names[self.world.pick(len(names), 0.5)] if len(names) > 1 else names[0]
