"""The calls for Celery: about parked messages, which wait on the lock server, and about a beat.

``parked.lua`` describes the tokens of messages, and their turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from django_redis_lock.protocol.calls import Acquire, Call
from django_redis_lock.transport import packing as scripts
from django_redis_lock.transport.packing import HASH, Command, Encoded, Packing, Script

TAKEN_ON = 10_000  # milliseconds to publish a message that was taken on, or others take it on
NO_TURN = "="  # the backlog of messages whose tasks take no turns; that of others adds a text
EXCLUSIVE = "-"  # the limit of messages that need their lock alone

POLL = Script("park_poll")
END = Script("park_end")
PUT_OFF = Script("park_put_off")
LIMIT = Script("park_limit")
UNPARK = Script("unpark")
RESTORE = Script("park_restore")
BACKLOGS = Script("backlogs")
TICK = Script("tick")


@dataclass(slots=True, eq=False, repr=False)
class Park(Acquire):
    """Take the lock, or keep a message in a backlog, to be published once it is granted the lock.

    ``waits_in`` is "@" and the id of the outbox that it comes into then.
    """

    message: str = field(kw_only=True)
    turn: str = field(default=NO_TURN, kw_only=True)
    limit: str = field(default=EXCLUSIVE, kw_only=True)
    worker: str = field(default="0 -", kw_only=True)
    """Whose limit it is: how many milliseconds ago that worker began, and its id."""
    instead_of: str = field(default="", kw_only=True)
    """The digest of the id of a parked task, whose place the message takes."""

    def encode(self, packing: Packing) -> Encoded:
        request = self.request
        most = "" if request.max_waiters is None else str(request.max_waiters)
        args = [request.token, str(request.lease_ms), request.record, request.name]
        args += [self.waits_in, "", most, "", self.message, self.turn, self.limit, self.worker]
        args += [self.instead_of] if self.instead_of else []
        messages = f"{packing.parked_prefix}{self.waits_in[1:]}::{request.name}"
        script = scripts.ACQUIRE_SHARED if request.shared else scripts.ACQUIRE
        return script, [*packing.granting_keys(request.name), messages], args


@dataclass(slots=True, eq=False, repr=False)
class OutboxCall(Call):
    """A call about an outbox; its script describes the answer."""

    script: Script | Command
    outbox: str
    name: str  # a lock; empty for all, on all shards
    args: list[str]
    keys_of: str = ""  # the lock whose keys a script takes; empty for what comes before a name
    own_keys: Sequence[str] = ()  # which keys of the outbox it takes then; see ``parked.lua``

    def encode(self, packing: Packing) -> Encoded:
        keys = packing.granting_keys(self.keys_of) if isinstance(self.script, Script) else []
        own = [f"{packing.parked_prefix}{self.outbox}:{each}" for each in self.own_keys]
        return self.script, [*keys, *own], self.args

    def join(self, answers: list[Any]) -> Any:
        """Return one answer for those of all shards."""
        return sum(answers)


class PollOutbox(OutboxCall):
    """Attend to all locks, and take on ``most`` messages.

    Some locks after those to ``skip`` are mended and read; none if that is -1.
    """

    def __init__(self, outbox: str, most: int = 0, skip: int = -1) -> None:
        super().__init__(POLL, outbox, "", [f"@{outbox}", str(most), str(TAKEN_ON), str(skip)])

    def join(self, answers: list[Any]) -> Any:
        messages, pauses, locks = zip(*answers, strict=True)
        pause = min((pause for pause in pauses if pause >= 0), default=-1)
        return [[*chain(*messages)], pause, [*chain(*locks)]]


class EndParking(OutboxCall):
    """Forget a message that was published; with its ``turn``, one that may wait still."""

    def __init__(self, outbox: str, name: str, token: str, turn: str = "") -> None:
        own = f":{name}", "outbox", "troubles", "locks", f"limits:{name}"
        super().__init__(END, outbox, name, [token, name, f"@{outbox}", turn], name, own)


class PutOff(OutboxCall):
    """Put off a message, for milliseconds; ``keeps_lock`` and ``aside`` since it failed first."""

    def __init__(
        self,
        outbox: str,
        name: str,
        *,
        token: str,
        why: str,
        again: int,
        keeps_lock: int = 0,
        aside: int | None = None,
    ) -> None:
        times = [str(again), str(keeps_lock), "" if aside is None else str(aside)]
        super().__init__(PUT_OFF, outbox, name, [token, name, f"@{outbox}", why, *times], name)


class SetParkedLimit(OutboxCall):
    """Set the limit of a task in a backlog, unless a worker that began later has.

    ``owner`` is the digest of its name. Answers whether the limit is another one now.
    """

    def __init__(
        self, outbox: str, name: str, *, turn: str, owner: str, limit: str, worker: str
    ) -> None:
        args = [name, f"@{outbox}", turn, owner, limit, worker]
        super().__init__(LIMIT, outbox, name, args, name)


class ReadMessage(OutboxCall):
    """Return a list of a message, or of ``None``."""

    def __init__(self, outbox: str, name: str, token: str) -> None:
        super().__init__(Command("HMGET"), outbox, name, [token], own_keys=[f":{name}"])


class Unpark(OutboxCall):
    """Let messages leave their backlogs, to be published without their lock.

    Of a lock whose tasks are not named, by digests of their ids, some do at once.
    """

    def __init__(self, outbox: str, name: str = "", ids: Sequence[str] = ()) -> None:
        super().__init__(UNPARK, outbox, name, [f"@{outbox}", name, *ids])


class ReadAside(OutboxCall):
    """Return the messages that were put aside: what stood in the outbox, and why, in turn."""

    def __init__(self, outbox: str, name: str) -> None:
        super().__init__(HASH, outbox, name, [], own_keys=["aside"])

    def join(self, answers: list[Any]) -> Any:
        return [*chain(*answers)]


class Restore(OutboxCall):
    """Publish messages that were put aside, of a lock or of all; or delete them. Some at once."""

    def __init__(self, outbox: str, name: str, *, delete: bool = False) -> None:
        super().__init__(RESTORE, outbox, name, [f"@{outbox}", name, "1" if delete else ""])


@dataclass(slots=True, eq=False, repr=False)
class ReadBacklogs(Call):
    """Read the backlogs of a lock; ``backlogs.lua`` describes the answer."""

    name: str

    def encode(self, packing: Packing) -> Encoded:
        return BACKLOGS, [packing.queue_prefix + self.name, packing.seen_key], [self.name]


@dataclass(slots=True, eq=False, repr=False)
class ReadTicks(Call):
    """Return when each entry was sent, as a list of entries and times in turn."""

    name: str  # the lock of the leader

    def encode(self, packing: Packing) -> Encoded:
        return HASH, [packing.ticks_prefix + self.name], []


@dataclass(slots=True, eq=False, repr=False)
class NoteTick(Call):
    """Note that an entry is sent. Answers whether the caller leads; otherwise it must not be."""

    name: str
    token: str
    entry: str
    at: float  # in seconds since the epoch, by the clock of the caller, as in its schedule

    def encode(self, packing: Packing) -> Encoded:
        keys = [packing.lock_prefix + self.name, packing.ticks_prefix + self.name]
        return TICK, keys, [self.token, self.entry, f"{self.at:.6f}"]
