"""A world of processes and servers, and the scheduler that chooses what happens next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from django_redis_lock.backends.renewal import Renewer
from tests.simulation import product, threads
from tests.simulation.ledger import Ledger
from tests.simulation.loops import Loop, Tasklet, put_on_loops
from tests.simulation.network import Fate, Flight, Network, Site

if TYPE_CHECKING:
    from tests.simulation.promises import Promise
    from tests.simulation.views import View

STEPS = 12_000
"""A schedule that takes more is in a loop."""
FAULT_WITHIN = 60
"""Steps within which the next fault comes."""

Thread = threads.Thread | Tasklet
"""What carries out an actor."""
Fault = Callable[["World"], bool]
"""Does something to a world; returns False if it can't be done now."""


class Choices(ABC):
    """The source of the choices of one schedule. Each is a number; 0 is the normal course."""

    def __init__(self) -> None:
        self.made: list[int] = []
        """The choices so far."""
        self.numbers: list[int] = []
        """Of how many there was to choose, each time."""

    def pick(self, number: int, odds: float = 1.0) -> int:
        """Return one of so many, from 0 up; other than 0 only with these odds."""
        choice = self.choose(number, odds)
        self.made.append(choice)
        self.numbers.append(number)
        return choice

    @abstractmethod
    def choose(self, number: int, odds: float) -> int: ...


class Broken(AssertionError):
    """A promise was broken."""


class TooLong(Exception):
    """A schedule does not end."""


class Process:
    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = product.Identity(number)
        self.dead = False
        self.died_at = math.inf
        self.resumes_at: float | None = None
        """When it goes on, if it is stopped."""
        self.stopped_until = 0.0
        """When it went on, or goes on, after it was stopped last."""
        self.disturbed_until = 0.0
        """Until when a fault may have kept it from what it has to do."""
        self.late = False
        """Whether a call of it may arrive after it was given up."""
        self.renewer: Renewer
        self.backend: Any = None
        self.loop: Loop | None = None
        """Where its actors are, if it uses asyncio."""

    def __repr__(self) -> str:
        return f"p{self.number}"

    @property
    def runs(self) -> bool:
        return not self.dead and self.resumes_at is None

    def disturb(self, until: float) -> None:
        self.disturbed_until = max(self.disturbed_until, until)


class World:
    """Processes, servers and what is under way between them."""

    def __init__(self, choices: Choices, *, telling: bool = False) -> None:
        self.pick = choices.pick
        self.machine = threads.new_machine(product.enter)
        self.network = Network(self.machine)
        self.network.fate = self._fate
        self.ledger = Ledger(self)
        self.processes: list[Process] = []
        self.sites: list[Site] = []
        self.may_fail = 0
        """How many of the servers may fail; 0 if all may."""
        self.view: View | None = None
        """What the servers have stored."""
        self.parking: Any = None
        """The messages that are parked, if the backend can park them."""
        self.rejoins_after = 0.0
        """Seconds for which a server does not take part after a failure."""
        self.names: tuple[str, ...] = ("x",)
        self.backend: Callable[[Process], Any]
        """Makes the backend of a process."""
        self.actor: Callable[[World, Process], Any]
        """Makes an actor."""
        self.slot_of: Callable[[str], tuple[Any, int]]
        """Returns the node and the slot of a lock, in a cluster."""
        self.faults: Sequence[Fault] = ()
        self.expected: Counter[str] = Counter()
        """How often something happened that is not promised to be impossible, by its cause."""
        self.disturbed_until = 0.0
        """Until when a fault of a server may keep all processes from what they have to do."""
        self.has_loops = False
        """Whether most processes use asyncio."""
        self.has_slots = False
        """Whether locks move from server to server."""
        self.forgotten = False
        """Whether a server has lost data."""
        self.stale = False
        """Whether a server has data that was out of date, so that what was over came back."""
        self.late = False
        """Whether calls may arrive after they were given up."""
        self.fates: list[tuple[Fate, float]] = []
        """What becomes of the next calls."""
        self.once: Sequence[Fault] = ()
        """Faults of which one may happen at any step."""
        self.steps = 0
        self.story: list[str] = []
        self.broken: Broken | None = None
        """The first promise that was broken, as whoever noticed it may be interrupted then."""
        self._telling = telling
        self._stepped: list[Callable[[], object]] = []
        self._ended: list[Callable[[], object]] = []
        self._actors: list[Thread] = []
        self._news = False
        self._faults_left = 0
        self._fault_in = 0

    def promise(self, *promises: Promise) -> None:
        """Check these after every step that has changed something, and at the end."""
        for promise in promises:
            self._stepped.append(promise.stepped)
            self._ended.append(promise.ended)
            self.ledger.watchers.append(promise)

    def tell(self, text: str, *values: object) -> None:
        """Note what happens, for the reader of a schedule."""
        if self._telling:
            self.story.append(f"{self.machine.now - 1000:9.4f}  {text.format(*values)}")

    def expect(self, what: str) -> None:
        """Note that something happened that is not promised to be impossible."""
        self.expected[what] += 1
        self.tell("not promised: {}", what)

    def breaks(self, promise: str, text: str) -> Broken:
        error = Broken(f"{promise}: {text}")
        self.broken = self.broken or error
        return error

    @property
    def fences_may_fall(self) -> bool:
        """Whether the last fence may be lost, and the clock that replaces it be behind."""
        # A slot may have moved to a node whose clock is behind.
        behind = self.has_slots and len({site.offset for site in self.sites}) > 1
        return self.forgotten and (self.stepped_back > 0 or behind)

    @property
    def stepped_back(self) -> float:
        """By how many seconds the clock of a server was set back."""
        return max((site.stepped_back_ms for site in self.sites), default=0) / 1000

    @property
    def any_late(self) -> bool:
        """Whether any call may arrive after it was given up."""
        return self.late or any(process.late for process in self.processes)

    def disturb(self, until: float) -> None:
        self.disturbed_until = max(self.disturbed_until, until)

    def disturbs_until(self, process: Process) -> float:
        """Return until when a fault may keep a process from what it has to do."""
        return max(process.disturbed_until, self.disturbed_until)

    def note(self) -> None:
        """Note that something has changed, so that the promises have to be checked."""
        self._news = True

    def _executed(self, site: Site, words: Sequence[bytes], reply: Any) -> None:
        self._news = True
        if self._telling:
            self.tell("  server {}: {} → {}", site.name, product.shown(words), reply)

    def process(self) -> Process:
        process = Process(len(self.processes) + 1)
        self.processes.append(process)
        running = getcurrent()
        before = getattr(running, "process", None)
        running.process = process  # which the package asks for who it is
        product.enter(process)
        process.renewer = Renewer()
        process.backend = self.backend(process)
        if self.has_loops and not self.pick(2, 0.4):
            process.loop = Loop(process)
            put_on_loops(process.backend)
        running.process = before
        if before is not None:
            product.enter(before)
        return process

    def site(self, make: Callable[..., Site], *arguments: Any) -> Site:
        site = make(self.network, "abcde"[len(self.sites)], self._executed, *arguments)
        site.server.scripts.update(product.KNOWN_SCRIPTS)
        self.sites.append(site)
        return site

    def start(self, process: Process, target: Callable[[], object], name: str) -> None:
        """Start a thread or task of a process. The schedule goes on until all have ended."""
        name = f"{name} of {process}"
        if process.loop is not None:
            self._actors.append(process.loop.start(target, name))
        else:
            thread = threads.Thread(target, name, process=process)
            thread.start()
            self._actors.append(thread)

    def act(self, process: Process, name: str, way: Callable[[Any], object]) -> None:
        actor = self.actor(self, process)
        self.start(process, lambda: actor.carry_out(lambda: way(actor)), name)

    @property
    def alive(self) -> list[Process]:
        return [item for item in self.processes if not item.dead]

    def any_of(self, items: Sequence[Any]) -> Any:
        return items[self.pick(len(items))]

    @property
    def actors(self) -> list[Thread]:
        self._actors = [item for item in self._actors if not item.dead and not item.process.dead]
        return self._actors

    def prepare_faults(self, most: int) -> None:
        self._faults_left = self.pick(most + 1)
        self._prepare_next_fault()

    def run(self) -> None:
        """Go on until all actors have ended. Raises ``TooLong`` and what a promise raises."""
        while self.actors:
            if not self._step() and self.actors:
                waiting = [item.name for item in self.machine.asleep]
                raise TooLong(f"Nothing can happen any more, but these wait: {waiting}")

    def settle(self, seconds: float) -> None:
        """Go on for some time without any fault, with all servers and processes running."""
        self._fault_in, self.fates = 0, []
        for process in self.processes:
            process.resumes_at = None
        until = self.machine.now + seconds
        while self.machine.now < until and self._step():
            pass
        self.machine.now = max(self.machine.now, until)
        self._look_again()

    def end(self) -> None:
        self._look_again()
        for check in self._ended:
            check()
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        for process in self.processes:
            self.machine.kill(process)
            if process.loop is not None:
                process.loop.close()

    def _step(self) -> bool:
        """Do one thing; return False if nothing can happen any more."""
        self.steps += 1
        if self.steps > STEPS:
            raise TooLong(f"It takes more than {STEPS} steps")
        self._let_faults_happen()
        if not self._choose_next():
            return False
        if self._news:
            self._news = False
            self._look_again()
            for check in self._stepped:
                check()
        if self.broken is not None:
            raise self.broken
        return True

    def _choose_next(self) -> bool:
        """Run a thread, let something land, or let time pass; return False if there is nothing."""
        machine = self.machine
        ready = [item for item in machine.ready if item.process.resumes_at is None]
        heads = self.network.heads()
        landable = [item for item in heads if item.since <= machine.now]
        target = None if ready else self._next_moment(heads, may_land=bool(landable))
        number = len(ready) + len(landable) + (target is not None)
        if not number:
            return False
        choice = self.pick(number) if number > 1 else 0
        if choice < len(ready):
            machine.run(ready[choice])
        elif choice < len(ready) + len(landable):
            woken = self.network.land(landable[choice - len(ready)])
            if woken is not None and woken in machine.ready and woken.process.resumes_at is None:
                machine.run(woken)
        else:
            assert target is not None
            machine.now = target
            machine.expire()
            self._resume()
            self._news = True
        return True

    def _look_again(self) -> None:
        """Let the view forget what it has seen."""
        if self.view is not None:
            self.view.seen.clear()

    def _next_moment(self, heads: Sequence[Flight], *, may_land: bool) -> float | None:
        """Return until when time may pass: nothing that is due may be late."""
        now = self.machine.now
        moments = [item.due if item.since <= now else item.since for item in heads]
        moments += [item.resumes_at for item in self.processes if item.resumes_at is not None]
        if (due := self.machine.next_due()) is not None:
            moments.append(due)
        target = min(moments, default=None)
        if target is None or (may_land and target <= now):
            return None
        return max(target, now)

    def _resume(self) -> None:
        for process in self.processes:
            if process.resumes_at is not None and process.resumes_at <= self.machine.now:
                process.resumes_at = None

    def _let_faults_happen(self) -> None:
        if self._fault_in:
            self._fault_in -= 1
            if not self._fault_in:
                self._faults_left -= 1
                self._play(self.faults[self.pick(len(self.faults))])
                self._prepare_next_fault()
        if self.once and (choice := self.pick(1 + len(self.once))):
            fault, self.once = self.once[choice - 1], ()
            self._play(fault)

    def _play(self, fault: Fault) -> None:
        if fault(self):
            self._news = True

    def _prepare_next_fault(self) -> None:
        if self._faults_left and self.faults:
            self._fault_in = 1 + self.pick(FAULT_WITHIN)

    def _fate(self, site: Site) -> tuple[Fate, float]:
        process: Process = getcurrent().process
        if process.dead:
            raise threads.Killed  # before anything is sent
        if not self.fates:
            return _FINE
        fate, delay = self.fates.pop()
        process.disturb(self.machine.now + delay + 1.0)
        process.late = process.late or fate is Fate.LATE
        self.tell("{}: a call is {}, {} s", process, fate.name.lower(), delay)
        return fate, delay


_FINE = (Fate.FINE, 0.0)
