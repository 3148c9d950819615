"""The calls about parked messages: those of Celery's tasks that wait on the lock server.

``parked.lua`` describes the tokens of messages, and their turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from django_redis_lock.protocol.calls import Acquire, Call
from django_redis_lock.transport.packing import (
    ACQUIRE,
    ACQUIRE_SHARED,
    Command,
    Encoded,
    Packing,
    Script,
)

TAKEN_ON = 10_000
"""Milliseconds in which a message that was taken on is published, or others take it on."""
NO_TURN = "="
"""The backlog of messages whose tasks take no turns; that of others is "=" and a text."""
ALONE = "-"
"""The limit of messages that need their lock alone."""

LOOK = Script("park_look")
END = Script("park_end")
PUT_OFF = Script("park_put_off")
LIMIT = Script("park_limit")
UNPARK = Script("unpark")
RESTORE = Script("park_restore")
BACKLOGS = Script("backlogs")
MESSAGE = Command("HMGET")


@dataclass(slots=True, eq=False, repr=False)
class Park(Acquire):
    """Take the lock, or keep a message in a backlog, to be published once it is granted the lock.

    ``waits_in`` is "@" and the id of the outbox that it comes into then.
    """

    message: str = field(kw_only=True)
    turn: str = field(default=NO_TURN, kw_only=True)
    limit: str = field(default=ALONE, kw_only=True)
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
        script = ACQUIRE_SHARED if request.shared else ACQUIRE
        return script, [*packing.granting_keys(request.name), messages], args


@dataclass(slots=True, eq=False, repr=False)
class OutboxCall(Call):
    outbox: str
    """The id of an outbox."""
    name: str = ""
    """A lock; empty for all, on all shards."""

    def key(self, packing: Packing, rest: str) -> str:
        """Return a key of the outbox; see ``parked.lua``."""
        return f"{packing.parked_prefix}{self.outbox}:{rest}"

    def join(self, answers: list[Any]) -> Any:
        """Return one answer for those of all shards."""
        return sum(answers)


@dataclass(slots=True, eq=False, repr=False)
class Look(OutboxCall):
    """Look after all locks, and take on messages; ``park_look.lua`` describes the answer."""

    most: int = 0
    """How many messages to take on."""
    skip: int = -1
    """How many locks to pass over, of which some are mended and read then; -1 to read none."""

    def encode(self, packing: Packing) -> Encoded:
        args = [f"@{self.outbox}", str(self.most), str(TAKEN_ON), str(self.skip)]
        return LOOK, packing.granting_keys(""), args

    def join(self, answers: list[Any]) -> Any:
        messages, pauses, locks = zip(*answers, strict=True)
        pause = min((pause for pause in pauses if pause >= 0), default=-1)
        return [[*chain(*messages)], pause, [*chain(*locks)]]


@dataclass(slots=True, eq=False, repr=False)
class EndParking(OutboxCall):
    """Forget a message that was published; with its ``turn``, one that may wait still."""

    token: str = field(kw_only=True)
    turn: str = field(default="", kw_only=True)

    def encode(self, packing: Packing) -> Encoded:
        rests = f":{self.name}", "outbox", "troubles", "locks", f"limits:{self.name}"
        keys = [*packing.granting_keys(self.name), *(self.key(packing, rest) for rest in rests)]
        return END, keys, [self.token, self.name, f"@{self.outbox}", self.turn]


@dataclass(slots=True, eq=False, repr=False)
class PutOff(OutboxCall):
    """Put off a message that can't be published. ``park_put_off.lua`` describes the answer.

    All times are milliseconds, the last two since it failed first.
    """

    token: str = field(kw_only=True)
    why: str = field(kw_only=True)
    again: int = field(kw_only=True)
    keeps_lock: int = field(default=0, kw_only=True)
    aside: int | None = field(default=None, kw_only=True)

    def encode(self, packing: Packing) -> Encoded:
        args = [self.token, self.name, f"@{self.outbox}", self.why, str(self.again)]
        args += [str(self.keeps_lock), "" if self.aside is None else str(self.aside)]
        return PUT_OFF, packing.granting_keys(self.name), args


@dataclass(slots=True, eq=False, repr=False)
class SetParkedLimit(OutboxCall):
    """Set the limit of a task in a backlog, unless a worker that began later has.

    Answers whether the limit is another one now.
    """

    turn: str = field(kw_only=True)
    owner: str = field(kw_only=True)
    """The digest of the task's name."""
    limit: str = field(kw_only=True)
    worker: str = field(kw_only=True)

    def encode(self, packing: Packing) -> Encoded:
        args = [self.name, f"@{self.outbox}", self.turn, self.owner, self.limit, self.worker]
        return LIMIT, packing.granting_keys(self.name), args


@dataclass(slots=True, eq=False, repr=False)
class ReadMessage(OutboxCall):
    """Return a list of a message, or of ``None``."""

    token: str = field(kw_only=True)

    def encode(self, packing: Packing) -> Encoded:
        return MESSAGE, [self.key(packing, f":{self.name}")], [self.token]


@dataclass(slots=True, eq=False, repr=False)
class Unpark(OutboxCall):
    """Let messages leave their backlogs, to be published without their lock.

    Answers how many did. Of a lock whose tasks are not named some do at once.
    """

    ids: tuple[str, ...] = field(default=(), kw_only=True)
    """Digests of the ids of tasks."""

    def encode(self, packing: Packing) -> Encoded:
        return UNPARK, packing.granting_keys(""), [f"@{self.outbox}", self.name, *self.ids]


@dataclass(slots=True, eq=False, repr=False)
class ReadAside(OutboxCall):
    """Return the messages that were put aside: what stood in the outbox, and why, in turn."""

    def encode(self, packing: Packing) -> Encoded:
        return Command("HGETALL"), [self.key(packing, "aside")], []

    def join(self, answers: list[Any]) -> Any:
        return [*chain(*answers)]


@dataclass(slots=True, eq=False, repr=False)
class Restore(OutboxCall):
    """Publish messages that were put aside, of a lock or of all; or delete them.

    Answers how many they were. Some are done at once.
    """

    delete: bool = field(default=False, kw_only=True)

    def encode(self, packing: Packing) -> Encoded:
        args = [f"@{self.outbox}", self.name, "1" if self.delete else ""]
        return RESTORE, packing.granting_keys(""), args


@dataclass(slots=True, eq=False, repr=False)
class ReadBacklogs(Call):
    """Read the backlogs of a lock; ``backlogs.lua`` describes the answer."""

    name: str

    def encode(self, packing: Packing) -> Encoded:
        return BACKLOGS, [packing.queue_prefix + self.name, packing.heard_key], [self.name]
