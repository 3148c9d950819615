"""Messages that are parked in the queues of locks, a broker, and the workers that run them."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent
from kombu.utils.json import dumps

from django_redis_lock.celery.outbox import LOOK_AT, LOOK_EVERY, Publisher, digest
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.calls import ask, withdrawal
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.support.arguments import Sharing
from django_redis_lock.transport.parking import EndParking, Park
from tests.simulation.actors import CROWDS, Actor, Habits, Interrupted
from tests.simulation.ledger import Attempt
from tests.simulation.promises import Promise
from tests.simulation.threads import virtual_threading
from tests.simulation.views import ServerView, stored
from tests.simulation.world import Process, World

OUTBOX = "broker"
WORKERS = 2
"""How many look after the parked messages."""
LEASES = (5.0, 0.5, 2.0)
"""Seconds for which a lock is reserved for a message."""
MOMENT = 0.005
"""Seconds that a broker takes at each step."""
AGAIN = 1.0
"""Seconds after which a message comes again that could not be parked."""
LOOKED_AT = LOOK_EVERY + 0.3
"""Seconds within which a lock that is free is granted to a parked message."""
LOOKED_AT_DISTURBED = LOOKED_AT + 18.0
"""The same with faults: who was to look at it has stopped, and another one does so later."""
LATEST = 8.0
"""Seconds after which nothing comes late any more."""
IN_THE_END = 60.0
"""Seconds within which all messages are run, if there are no faults."""


@dataclass(frozen=True)
class Message:
    """A message of a task; the number of its attempt rises each time it is parked."""

    number: int
    name: str
    lease: float
    mode: Sharing
    attempt: int = 0
    place: str = ""
    """The token with which it was parked."""

    @property
    def token(self) -> str:
        """The token with which it is to be parked, however often this attempt is delivered."""
        return digest(str(self.number)) + digest(f"{self.number} {self.attempt}")


class Parked(Attempt):
    """The attempt of a parked message, which waits without a process."""

    comes_back = False

    def __init__(self, parking: Parking, lock: Lock) -> None:
        super().__init__(Process(0), lock)
        self.thread = None  # type: ignore[assignment]
        self._parking = parking

    def waits(self) -> bool:
        parking, token = self._parking, self.token.encode()
        kept = parking.stored(self.name, f"::{self.name}")
        if token not in kept or parking.publishes(self):
            return False
        return not parking.world.forgotten or self.token in parking.view.queue(self.name)

    @property
    def looked_after(self) -> float:
        parking = self._parking
        if parking.world.forgotten:  # perhaps that somebody has to look
            return math.inf
        return LOOKED_AT_DISTURBED + parking.stepped_back() if parking.disturbed else LOOKED_AT


class Parking:
    """The messages, and the broker that delivers them until they are acknowledged."""

    def __init__(self, world: World, view: ServerView, habits: Habits) -> None:
        self.world = world
        self.view = view
        self.habits = habits
        self.publishers: dict[Process, _Publisher] = {}
        self.to_run: set[int] = set()
        """The numbers of the messages that no worker has run yet."""
        self.unacknowledged: dict[object, tuple[Message, Process | None]] = {}
        """Each delivery, and to whom it was."""
        self._quiet_since: float | None = None

    def begin(self) -> None:
        """Start workers that look, and send some messages."""
        for process in self.world.processes[:WORKERS]:
            self._look(process)
        pick, habits = self.world.pick, self.habits
        for number in range(1 + pick(3)):
            name = self.world.names[pick(len(self.world.names), 0.5)]
            mode = habits.modes[pick(len(habits.modes))]
            mode = mode._replace(max_waiters=CROWDS[pick(len(CROWDS), 0.2)])
            self.to_run.add(number)
            self.deliver(Message(number, name, LEASES[pick(len(LEASES), 0.4)], mode), pick(4) / 4)

    def deliver(self, message: Message, delay: float = MOMENT) -> None:
        """Let a worker have a message."""
        world, delivery = self.world, object()
        self.unacknowledged[delivery] = message, None

        def arrive() -> None:
            alive = [item for item in world.processes if not item.dead]
            process = alive[world.pick(len(alive))]
            self.unacknowledged[delivery] = message, process
            world.tell("message {} is delivered to {}", message.number, process)
            world.act(process, "worker", lambda worker: worker.work(message, delivery))

        world.network.send(arrive, delay=delay)

    def died(self, process: Process) -> None:
        """Deliver what a process that was killed had not acknowledged, and start another worker."""
        for delivery, (message, to) in list(self.unacknowledged.items()):
            if to is process:
                del self.unacknowledged[delivery]
                self.deliver(message)
        self._look(next(item for item in self.world.processes if not item.dead))

    def stored(self, name: str, rest: str) -> Any:
        """Return the messages that are parked where a lock is, or what else belongs to them."""
        _, tag = self.view.place(name)
        return self.view._stored(f"-parked{tag}:{OUTBOX}{rest}") or ()

    def publishes(self, parked: Parked) -> bool:
        """Whether a message has the lock, and is to be published."""
        return f"{parked.token} {parked.name}".encode() in self.stored(parked.name, ":outbox")

    def leftovers(self) -> list[str]:
        """Return the tokens and locks that are stored for parked messages."""
        names = self.world.names
        parts = [(name, rest) for name in names for rest in (f"::{name}", ":outbox", ":locks")]
        return [word.decode() for part in parts for word in self.stored(*part)]

    def is_kept(self, name: str) -> bool:
        """Whether a lock is listed for ever among those that are waited for."""
        _, tag = self.view.place(name)
        return math.isinf((self.view._stored(f"-due{tag}") or {}).get(name.encode(), 0))

    @property
    def disturbed(self) -> bool:
        """Whether there were faults."""
        disturbed = any(item.dead or item.disturbed_until for item in self.world.processes)
        return disturbed or self.world.disturbed_until > 0

    @property
    def late(self) -> bool:
        """Whether calls may come late."""
        return self.world.late or any(process.late for process in self.world.processes)

    def stepped_back(self) -> float:
        """Return by how many seconds the clock of a server was set back."""
        return max(site.stepped_back_ms for site in self.world.sites) / 1000

    def is_over(self) -> bool:
        """Whether workers have nothing to do any more; or it is too late for that."""
        now = self.world.machine.now
        if self.to_run or self.unacknowledged or self.leftovers():
            self._quiet_since = None
            calm = max(1000.0, self.world.disturbed_until)
            for process in self.world.processes:
                calm = max(calm, process.disturbed_until, process.died_at * process.dead)
            return now > calm + IN_THE_END + 2 * self.stepped_back()
        self._quiet_since = self._quiet_since or now
        return not self.late or now > self._quiet_since + LATEST

    def _look(self, process: Process) -> None:
        self.world.act(process, "look", lambda worker: worker.look())


class _Publisher(Publisher):
    """The package's publisher in a virtual process, and its producer."""

    app = SimpleNamespace(conf=SimpleNamespace(task_publish_retry_policy={}))

    def __init__(self, parking: Parking) -> None:
        self.outbox = OUTBOX
        self.mutex = virtual_threading.Lock()
        self._parking = parking

    def _open(self) -> Any:
        return SimpleNamespace(publish=self._send)

    def _send(self, body: Any, **options: Any) -> None:
        """Let the broker have a message; that may fail before or after it is done."""
        number, name, lease, mode, *rest = body
        failure = self._parking.world.pick(3, 0.1)
        getcurrent().sleep(MOMENT)
        if failure == 1:
            raise OSError("The broker can't be reached")
        self._parking.deliver(Message(number, name, lease, Sharing(*mode), *rest))
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
        parking, publisher = self.world.parking, self._publisher
        revoked = self.world.pick(4, 0.2)  # the look at which tasks are revoked
        while not parking.is_over():
            pause = LOOK_EVERY
            with contextlib.suppress(LockUnavailable, Interrupted):
                revoked -= 1
                if not revoked:
                    publisher.unpark(self.process.backend, self._name())
                most = publisher.publish(self.process.backend, most_locks=LOOK_AT)
                pause = max(0.02, min(pause, most))
            with contextlib.suppress(Interrupted):
                getcurrent().sleep(pause)

    @property
    def _publisher(self) -> _Publisher:
        parking = self.world.parking
        return parking.publishers.setdefault(self.process, _Publisher(parking))

    def _run(self, message: Message) -> bool:
        """Run a message, if the lock is reserved for it; returns whether it was."""
        if not message.place:
            return False
        lock = self._lock(message.name, timeout=self.habits.leases[0], sharing=message.mode)
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
                self._publisher.publish(self.process.backend, message.name)
        return True

    def _park(self, message: Message) -> bool:
        """Park a message, or run it; returns whether it was done."""
        parking, backend, token = self.world.parking, self.process.backend, message.token
        lock = self._lock(message.name, timeout=message.lease, sharing=message.mode)
        parked = Parked(parking, lock)
        self.asking[message.name] = parked
        request = lock._request(backend)
        lock._share(request, backend)
        request.token = token
        known = self.world.ledger.by_token.get(token)
        if known is None or not known.waits():
            self.world.ledger.asks([parked])
            self.world.ledger.requested(parked, request)
        onward = replace(message, attempt=message.attempt + 1, place=token)
        text = dumps({"lock": message.name, "body": [*vars(onward).values()], "options": {}})
        request.waits_in = f"@{OUTBOX}"
        call = Park(request, request.waits_in, message=text)
        try:
            answer = backend.run(ask(call))
        except LockUnavailable:
            with contextlib.suppress(LockUnavailable):
                backend.run(ask(EndParking(OUTBOX, message.name, token)))
                backend.run(ask(withdrawal(request)))
            raise
        if call.lease(answer) is not None:
            if parking.publishes(parked) and not parking.late:
                text = f"{parked} is granted the lock, and published"
                raise self._breaks("NoMessageLost", text)
            return self._run(onward) or self._park(onward)
        return bool(answer[3] % 3)


class NoMessageLost(Promise):
    """Each parked message is run in the end, is in one place until then, and leaves nothing.

    The queue that it waits in does not expire.
    """

    def __init__(self, world: World, view: ServerView, habits: Habits) -> None:
        super().__init__(world)
        self._parking = world.parking = Parking(world, view, habits)

    def stepped(self) -> None:
        parking = self._parking
        for name in self.world.names:
            self._check_published(name)
            site, tag = parking.view.place(name)
            key = f"lock-queue{tag}:{name}".encode()
            queue = stored(site.server, key)
            if queue is None:
                continue
            endless = key not in site.server.ends
            parked = f"@{OUTBOX}".encode() in queue
            tokens = [token for _, token in parking.view.waiters(name, f"@{OUTBOX}")]
            if len(tokens) > len(set(tokens)) and not self.world.forgotten:
                raise self.broken(f"a message is twice in the line for {name}: {tokens}")
            if parked and not endless:
                raise self.broken(f"the line for {name} expires, where messages are parked")
            watched = name.encode() in parking.stored(name, ":locks")
            if (parked or endless) and not watched and not self.world.forgotten:
                raise self.broken(f"nobody looks after the line for {name}")

    def _check_published(self, name: str) -> None:
        kept, due = (self._parking.stored(name, rest) for rest in (f"::{name}", ":outbox"))
        for hold in self._parking.view.holds(name) if kept else ():
            entry = f"{hold.token} {name}".encode()
            if hold.token.encode() in kept and entry not in due and not self.world.forgotten:
                raise self.broken(f"{hold.token} has {name}, and is not to be published")

    def ended(self) -> None:
        parking = self._parking
        left = [*sorted(parking.to_run), *parking.unacknowledged.values(), *parking.leftovers()]
        left += filter(parking.is_kept, self.world.names)
        if left and not self.world.forgotten:
            raise self.broken(f"in the end there are {left}")
        if left:
            self.world.expect("messages are lost: a server lost data")
