"""Messages that are parked in backlogs of locks, a broker, and the workers that run them."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from django_redis_lock.celery.options import GUARD
from django_redis_lock.celery.outbox import Publisher, digest, limit_of, sealed
from django_redis_lock.celery.polling import POLL_EVERY, SHORTEST
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.calls import ask, withdrawal
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.support.arguments import Sharing
from django_redis_lock.transport.parking import EXCLUSIVE, EndParking, Park, SetParkedLimit
from tests.simulation.actors import CROWDS, Actor, Habits, Interrupted
from tests.simulation.ledger import Attempt
from tests.simulation.promises import Promise, limit_in_force
from tests.simulation.views import OUTBOX, ServerView
from tests.simulation.world import Process, World

TASK = "task"
TURNS = ("=", "=a", "=b")
"""The backlogs in which messages wait."""
WORKERS = 2
"""How many look after the parked messages."""
LEASES = (5.0, 0.5, 2.0)
"""Seconds for which a lock is reserved for a message."""
MOMENT = 0.005
"""Seconds that a broker takes at each step."""
AGAIN = 1.0
"""Seconds after which a message comes again that could not be parked."""
LOOKED_AT = POLL_EVERY + 0.3
"""Seconds within which a lock that is free is granted to a parked message."""
LOOKED_AT_DISTURBED = LOOKED_AT + 18.0
"""The same with faults: who was to look at it has stopped, and another one does so later."""
LATEST = 8.0
"""Seconds after which nothing comes late any more."""
IN_THE_END = 190.0
"""Seconds within which all messages are run once nothing fails any more."""


@dataclass(frozen=True)
class Message:
    """A message of a task; the number of its attempt rises each time it is parked."""

    number: int
    name: str
    lease: float
    turn: str
    crowd: int | None
    """How many may wait before it at most."""
    attempt: int = 0
    place: str = ""
    """The token with which it was parked."""

    @property
    def token(self) -> str:
        """The token with which it is to be parked, however often this attempt is delivered."""
        return digest(str(self.number)) + digest(f"{self.number} {self.attempt}") + digest(TASK)


class Parked(Attempt):
    """The attempt of a parked message, which waits without a process."""

    comes_back = False

    def __init__(self, parking: Parking, lock: Lock, backlog: str) -> None:
        super().__init__(Process(0), lock)
        self.thread = None  # type: ignore[assignment]
        self.backlog = backlog
        self._parking = parking

    def waits(self) -> bool:
        view, limit = self._parking.view, self.limit
        return self.token in view.queue(self.name) and limit_in_force(view, self.name, limit) != 0

    @property
    def limit(self) -> float | None:
        """The limit of its backlog today."""
        limits = self._parking.view.parked(self.name, f"limits:{self.name}")
        found = limits.get(f"{digest(TASK)}{self.backlog}".encode())
        limit = found.split()[0].decode() if found else limit_of(self.lock.sharing)
        return None if limit == EXCLUSIVE else int(limit)

    @property
    def next_turn(self) -> float:  # type: ignore[override]
        return self._parking.view.backlogs(self.name).get(self.backlog, (math.inf, []))[0]

    @property
    def looked_after(self) -> float:
        parking = self._parking
        if parking.world.forgotten:  # perhaps that somebody has to look
            return math.inf
        return LOOKED_AT_DISTURBED + parking.world.stepped_back if parking.disturbed else LOOKED_AT


class Parking:
    """The messages, and the broker that delivers them until they are acknowledged."""

    def __init__(self, world: World, view: ServerView, habits: Habits) -> None:
        self.world = world
        self.view = view
        self.habits = habits
        self.changes_at = self.world.machine.now + 0.5 * world.pick(4)
        """When a function begins to give another limit."""
        modes = [mode for mode in habits.modes if mode.limit or not mode.shared]
        closed = [Sharing(shared=True, limit=0)] if len(modes) > 1 else []
        self._modes = [each[world.pick(len(each))] for each in (modes + closed, modes)]
        self.to_run: set[int] = set()
        """The numbers of the messages that no worker has run yet."""
        self.unacknowledged: dict[object, tuple[Message, Process | None]] = {}
        """Each delivery, and to whom it was."""
        self.may_lose = False
        """Whether a late call of a process that is dead may end what was parked again since."""
        self.refused_at = 0.0
        """When the broker refused a message last, which is tried again a minute later."""
        self._quiet_since: float | None = None

    def begin(self) -> None:
        """Start workers that look, and send some messages."""
        for process in self.world.processes[:WORKERS]:
            self._poll(process)
        pick = self.world.pick
        for number in range(1 + pick(5)):
            name = self.world.names[pick(len(self.world.names), 0.5)]
            lease, turn = LEASES[pick(len(LEASES), 0.4)], TURNS[pick(len(TURNS))]
            message = Message(number, name, lease, turn, CROWDS[pick(len(CROWDS), 0.2)])
            self.to_run.add(number)
            self.deliver(message, pick(4) / 4)

    @property
    def sharing(self) -> Sharing:
        """With whom tasks share locks now."""
        return self._modes[self.world.machine.now > self.changes_at]

    def deliver(self, message: Message, delay: float = MOMENT) -> None:
        world, delivery = self.world, object()
        self.unacknowledged[delivery] = message, None

        def arrive() -> None:
            process = world.any_of(world.alive)
            self.unacknowledged[delivery] = message, process
            world.tell("message {} is delivered to {}", message.number, process)
            world.act(process, "worker", lambda worker: worker.work(message, delivery))

        world.network.send(arrive, delay=delay)

    def died(self, process: Process) -> None:
        """Deliver what a process that was killed had not acknowledged, and start another worker."""
        for delivery, (message, to) in list(self.unacknowledged.items()):
            if to is process:
                self.may_lose = self.may_lose or self.world.late or process.late
                del self.unacknowledged[delivery]
                self.deliver(message)
        self._poll(self.world.alive[0])

    def leftovers(self) -> list[bytes]:
        """Return the keys that are there for parked messages."""
        data = [item for site in self.world.sites for item in site.server.data.items()]
        endless = [key for key, at in data if key[:8] == b"lock-due" and math.inf in at.values()]
        return endless + [key for key, _ in data if key[:11] == b"lock-parked" or b":@" in key]

    @property
    def disturbed(self) -> bool:
        disturbed = any(item.dead or item.disturbed_until for item in self.world.processes)
        return disturbed or self.world.disturbed_until > 0

    def is_over(self) -> bool:
        """Whether workers have nothing to do any more; or it is too late for that."""
        now = self.world.machine.now
        if self.to_run or self.unacknowledged or self.leftovers():
            self._quiet_since = None
            calm = max(1000.0, self.refused_at, self.world.disturbed_until)
            for process in self.world.processes:
                calm = max(calm, process.disturbed_until, process.died_at * process.dead)
            return now > calm + IN_THE_END + 2 * self.world.stepped_back
        self._quiet_since = self._quiet_since or now
        return not self.world.any_late or now > self._quiet_since + LATEST

    def _poll(self, process: Process) -> None:
        self.world.act(process, "look", lambda worker: worker.look())


class _Publisher(Publisher):
    """The package's publisher in a virtual process, and its producer."""

    app = SimpleNamespace(tasks={TASK: SimpleNamespace(ignore_result=True, **{GUARD: None})})

    def __init__(self, parking: Parking) -> None:
        self.outbox, self.unreachable, self._producer = OUTBOX, "", None
        self._parking = parking

    def _open(self) -> Any:
        return SimpleNamespace(publish=self._deliver)

    def _deliver(self, body: Any, **options: Any) -> None:
        """Let the broker have a message; that may fail before or after it is done."""
        failure = self._parking.world.pick(4, 0.1)
        getcurrent().sleep(MOMENT)
        if failure in (1, 3):
            self._parking.refused_at = self._parking.world.machine.now
            raise (OSError if failure == 1 else ValueError)("The broker does not take it")
        self._parking.deliver(Message(*body))
        getcurrent().sleep(MOMENT)
        if failure == 2:
            raise OSError("The broker does not confirm")


class Worker(Actor):
    """A thread that uses locks, as others do, or runs messages."""

    def work(self, message: Message, delivery: object) -> None:
        """Run a message with its lock, or park it."""
        parking = self.world.parking
        try:
            if not self._run(message) and not self._park(message):
                parking.deliver(message, AGAIN)
        except (LockUnavailable, Interrupted):  # it is tried again
            parking.deliver(replace(message, attempt=message.attempt + 100), AGAIN)
            raise
        finally:
            if not self.process.dead:
                del parking.unacknowledged[delivery]

    def look(self) -> None:
        """Look after the outbox and the locks of parked messages, as a worker does."""
        parking, machine, backend = self.world.parking, self.world.machine, self.process.backend
        publisher, due = _Publisher(parking), 0.0
        unparks = self.world.pick(4, 0.2)  # the look at which some messages are
        while not parking.is_over():
            pause = POLL_EVERY
            with contextlib.suppress(LockUnavailable, Interrupted):
                unparks -= 1
                if not unparks:
                    publisher.unpark(backend, self._name(), "0" if self.world.pick(2) else None)
                attends = machine.now >= due
                pause, found = publisher.publish(backend, 0 if attends else -1)
                if attends:
                    self._tell_limits(found)
                    due = machine.now + POLL_EVERY
                pause = max(SHORTEST, min(pause, due - machine.now))
            with contextlib.suppress(Interrupted):
                getcurrent().sleep(pause)

    def _tell_limits(self, found: list[Any]) -> None:
        """Do as ``Publisher.attend`` for backlogs with another limit than today's."""
        limit = limit_of(self.world.parking.sharing)
        for name, *backlogs in found:
            for turn, token, known in backlogs:
                if known.split()[:1] != [limit.encode()]:
                    about = {"owner": token[32:].decode(), "limit": limit, "worker": "0 -"}
                    call = SetParkedLimit(OUTBOX, name.decode(), turn=turn.decode(), **about)
                    self.process.backend.run(ask(call))

    def _run(self, message: Message) -> bool:
        """Run a message, if the lock is reserved for it; returns whether it was."""
        if not message.place:
            return False
        sharing = self.world.parking.sharing
        lock = self._lock(message.name, timeout=self.habits.leases[0], sharing=sharing)
        attempts = self._ask(lock, 0.0, ahead=True)
        attempts[0].place = message.place
        ticket = token_id(message.place.encode())
        if not self._answer(attempts, lambda: lock.take_over(ticket)):
            return False
        lease = attempts[0].lease
        self._use(lock, attempts)
        self.world.tell("message {} was run by {}", message.number, self.process)
        self.world.parking.to_run.discard(message.number)
        if lease.passed_to_message:
            with contextlib.suppress(LockUnavailable):  # a worker looks later
                _Publisher(self.world.parking).publish(self.process.backend)
        return True

    def _park(self, message: Message) -> bool:
        """Park a message, or run it; returns whether it was done."""
        parking, backend, token = self.world.parking, self.process.backend, message.token
        sharing = parking.sharing._replace(max_waiters=message.crowd)
        lock = self._lock(message.name, timeout=message.lease, sharing=sharing)
        parked = Parked(parking, lock, message.turn)
        self.asking[message.name] = parked
        request = lock.make_request(backend)
        request.token = token
        known = self.world.ledger.by_token.get(token)
        if known is None or token not in parking.view.queue(message.name):
            self.world.ledger.asks([parked])
            self.world.ledger.requested(parked, request)
        onward = replace(message, attempt=message.attempt + 1, place=token)
        place = {"lock": message.name, "token": token, "id": str(message.number)}
        body = {"body": [*vars(onward).values()], "options": {"headers": {"task": TASK}}}
        about = {"message": sealed(place | body), "turn": message.turn, "limit": limit_of(sharing)}
        older = self.world.pick(4, 0.1)  # perhaps the one of which it takes the place
        instead_of = digest(str(older)) if older not in (0, message.number) else ""
        call = Park(request, f"@{OUTBOX}", instead_of=instead_of, **about)
        try:
            answer = backend.run(ask(call))
        except LockUnavailable:
            with contextlib.suppress(LockUnavailable):
                backend.run(ask(EndParking(OUTBOX, message.name, token=token, turn=message.turn)))
                backend.run(ask(withdrawal(request)))
            raise
        if call.lease(answer) is not None:
            return self._run(onward) or self._park(onward)
        return bool(answer[3] % 3)


class NoMessageLost(Promise):
    """Each parked message is run in the end, is in one place until then, and leaves nothing. The
    queue that it waits in does not expire."""

    def __init__(self, world: World, view: ServerView, habits: Habits) -> None:
        super().__init__(world)
        self._view = view
        self._waiting = {name: set[bytes]() for name in world.names}
        """The tokens of the messages that waited for each lock, if that is known."""
        self._parking = world.parking = Parking(world, view, habits)

    def stepped(self) -> None:
        for name in self.world.names:
            key = f"lock-queue{self._view.place(name)[1]}:{name}".encode()  # which may just move
            endless = not any(key in site.server.ends for site in self.world.sites)
            queue = self._view.part(name, "-queue") or {}
            turn = queue.get(f"@{OUTBOX}".encode())
            if turn is not None and not endless:
                raise self.broken(f"the line for {name} expires, where messages are parked")
            if self.partial:
                self._waiting.pop(name, None)
            elif not self.world.forgotten:
                if queue and endless and name.encode() not in self._view.parked(name, "locks"):
                    raise self.broken(f"nobody looks after the line for {name}")
                self._check_places(name, turn)

    def _check_places(self, name: str, turn: float | None) -> None:
        view, backlogs = self._view, self._view.backlogs(name).values()
        waiting = [token.encode() for _, line in backlogs for token in line]
        words = map(bytes.split, view.parked(name, "outbox"))
        published = [token for token, of in words if of == name.encode()]
        shown = view.part(name, "-waiters", f"@{OUTBOX}:{name}") or ()
        found = Counter([*view.parked(name, f":{name}")]), len(shown), turn
        due = Counter(waiting + published), len(waiting), min(backlogs, default=[None])[0]
        if found != due:
            raise self.broken(f"of the messages for {name} are stored {found}, not {due}")
        if lost := {hold.token.encode() for hold in view.holds(name)} & {*waiting}:
            raise self.broken(f"{lost} has {name}, and is not to be published")
        known, self._waiting[name] = self._waiting.get(name, {*waiting}), {*waiting}
        for token in set() if known.difference(waiting) else {*waiting} - known:
            most = self.ledger.by_token[token.decode()].lock.sharing.max_waiters
            if most is not None and len(known) >= most:
                raise self.broken(f"{token!r} is parked behind {known}, and accepts {most}")

    def ended(self) -> None:
        parking = self._parking
        left = [*sorted(parking.to_run), *parking.unacknowledged.values(), *parking.leftovers()]
        if left and not (self.world.forgotten or parking.may_lose):
            raise self.broken(f"in the end there are {left}")
        if left:
            why = "a server lost data" if self.world.forgotten else "a call of the dead came late"
            self.world.expect(f"messages are lost: {why}")
