"""What is under way between virtual processes and servers, and the servers as clients reach them.
Nothing gets lost or late here by itself: ``Network.fate`` decides that for each call, and the
faults do the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar

from tests.simulation.server import Data, Server
from tests.simulation.threads import Machine, Thread

LATENCY = 0.01
"""Seconds within which something arrives on a healthy network."""
SOCKET_TIMEOUT = 1.0
EPOCH = 1_700_000_000_000_000
"""What the servers' clocks read (microseconds) when the monotonic clocks read 0."""

Landing = Callable[[], Thread | None]
"""What happens when something arrives. It returns the thread that waited for nothing else."""


class Fate(Enum):
    FINE = auto()
    LOST = auto()  # the connection breaks before the server reads it
    UNANSWERED = auto()  # or after
    LATE = auto()  # it takes seconds to arrive
    ANSWERED_LATE = auto()


@dataclass(eq=False, slots=True)
class Flight:
    """Lands at a moment from ``since`` to ``due``; flights on the same line land in order."""

    land: Landing
    since: float
    due: float
    line: object
    site: Site | None

    def hold_back(self, until: float) -> None:
        self.since = max(self.since, until)
        self.due = max(self.due, until)


class Network:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flights: list[Flight] = []
        self.fate: Callable[[Site], tuple[Fate, float]] = lambda site: (Fate.FINE, 0.0)
        """Decides what becomes of a call to a site, and by how many seconds it is late."""

    def send(
        self,
        land: Landing,
        *,
        line: object = None,
        site: Site | None = None,
        delay: float = 0.0,
        within: float = LATENCY,
    ) -> None:
        """Let something land ``within`` seconds after ``delay``; ``site`` may be cut off."""
        since = self.machine.now + delay
        if site is not None and site.cut_off_until > since:
            since = site.cut_off_until
        self.flights.append(Flight(land, since, since + within, line or land, site))

    def heads(self) -> list[Flight]:
        lines: dict[int, Flight] = {}
        for flight in self.flights:
            lines.setdefault(id(flight.line), flight)
        return list(lines.values())

    def land(self, flight: Flight) -> Thread | None:
        self.flights.remove(flight)
        return flight.land()


class Site:
    """A server as clients reach it, and the pool of connections to it."""

    connection_kwargs: ClassVar = {"socket_timeout": SOCKET_TIMEOUT}

    def __init__(
        self, network: Network, name: str, executed: Callable[[Site, Sequence[bytes], Any], object]
    ) -> None:
        self.network = network
        self.name = name
        self.offset = 0.0
        """Seconds by which its clock was stepped."""
        self.stepped_back_ms = 0
        """By how many milliseconds its clock was set back in all."""
        self.up = True
        self.is_doomed = False
        """Whether a replica is about to take over."""
        self.cut_off_until = 0.0
        """Until when (monotonic) nothing arrives there, or from there."""
        self.connections: list[Any] = []
        self.lateness: Callable[[Any], float] = lambda connection: 0.0
        """Returns by how many seconds a message to a connection is late."""
        self._executed = executed  # called after each command, with its reply
        self._starts = 0
        self.server = self._start()

    def _start(self) -> Server:
        self._starts += 1
        run_id = f"{self.name}{self._starts}"
        return Server(self.clock, self._publish, self._pushed, run_id)

    def restart(self, seconds: float, *, with_data: bool) -> None:
        """Stop the server for some seconds; it forgets its scripts, and perhaps its data."""
        data, ends = self.server.data, self.server.ends
        self.server = self._start()
        if with_data:
            self.server.data, self.server.ends = data, ends
        self.refuse(seconds)

    def fail_over(self, data: Data, ends: dict[bytes, int]) -> None:
        """Have a replica take over with its data."""
        self.restart(0.1, with_data=False)
        self.server.data, self.server.ends = data, ends

    def refuse(self, seconds: float) -> None:
        """Break all connections, and let nobody connect for some seconds."""
        self.up = False
        self.cut(lambda connection: True)
        self.network.send(self._rise, delay=seconds)

    def _rise(self) -> None:
        self.up = True

    def step_clock(self, seconds: float) -> None:
        self.offset += seconds
        if seconds < 0:
            self.stepped_back_ms -= round(seconds * 1000)

    def cut_off(self, seconds: float) -> None:
        """Let nothing get through for some seconds, and then everything."""
        self.cut_off_until = self.network.machine.now + seconds
        for flight in self.network.flights:
            if flight.site is self:
                flight.hold_back(self.cut_off_until)

    def clock(self) -> int:
        """Return the server's clock in microseconds."""
        return EPOCH + round((self.network.machine.now + self.offset) * 1_000_000)

    def execute(self, words: Sequence[bytes]) -> Any:
        reply = self.server.execute(words)
        self._executed(self, words, reply)
        return reply

    def serve(self, wire: Any, words: Sequence[bytes]) -> Any:
        """Execute what has come over a connection on which a caller waits for the reply."""
        return self.execute(words)

    def cut(self, of: Callable[[Any], bool]) -> None:
        """Break connections. The server notices at once, the client when it reads."""
        for connection in [item for item in self.connections if of(item)]:
            connection.break_off()

    def _publish(self, channel: bytes, message: bytes) -> int:
        told = [item for item in self.connections if channel in item.channels]
        for connection in told:
            connection.publish(channel, message, self.lateness(connection))
        return len(told)

    def _pushed(self, key: bytes) -> None:
        for connection in self.connections:
            if connection.pops == key:
                connection.pop()
