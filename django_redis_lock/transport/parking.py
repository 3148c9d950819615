"""The calls about parked messages: those of Celery's tasks that wait in the queue of a lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from django_redis_lock.protocol.calls import Acquire, Call
from django_redis_lock.transport.packing import (
    ACQUIRE,
    ACQUIRE_SHARED,
    Encoded,
    Packing,
    Script,
)

TAKEN_ON = 10_000
"""Milliseconds in which a message that was taken on is published, or others take it on."""
LOOK_WITHIN = 2_000
"""Milliseconds until a lock is looked at again; see ``park_look.lua``."""

OUTBOX = Script("park_outbox")
END = Script("park_end")
LOOK = Script("park_look")
UNPARK = Script("unpark")


@dataclass(slots=True, eq=False, repr=False)
class Park(Acquire):
    """Take the lock, or keep a message in its queue, to be published once it is granted the lock.

    ``waits_in`` is "@" and the id of the outbox that it comes into then; see ``joining.lua``.
    """

    message: str = field(kw_only=True)
    instead_of: str = field(default="", kw_only=True)
    """The start of the token of a parked message, whose place it takes."""

    def encode(self, packing: Packing) -> Encoded:
        request = self.request
        most = "" if request.max_waiters is None else str(request.max_waiters)
        args = [request.token, str(request.lease_ms), request.record, request.name]
        args += [self.waits_in, "", most, "", self.message]
        args += [self.instead_of] if self.instead_of else []
        messages = f"{packing.parked_prefix}{self.waits_in[1:]}::{request.name}"
        script = ACQUIRE_SHARED if request.shared else ACQUIRE
        return script, [*packing.granting_keys(request.name), messages], args


@dataclass(slots=True, eq=False, repr=False)
class _OutboxCall(Call):
    outbox: str
    """The id of an outbox."""
    name: str
    """A lock."""

    def key(self, packing: Packing, rest: str = "") -> str:
        """Return the key of the outbox, or one that begins like it; see ``common.lua``."""
        return f"{packing.parked_prefix}{self.outbox}{rest or ':outbox'}"

    def messages(self, packing: Packing) -> str:
        """Return the key of the messages that wait for the lock."""
        return self.key(packing, f"::{self.name}")


@dataclass(slots=True, eq=False, repr=False)
class ReadOutbox(_OutboxCall):
    """Take on messages to be published, and ``locks`` to look at (-1: all, due or not).

    It asks the shard of a lock, or all if the name is empty. ``park_outbox.lua`` describes the
    answer.
    """

    locks: int
    most: int
    """How many messages to take on."""

    def encode(self, packing: Packing) -> Encoded:
        args = [str(self.most), str(self.locks), str(TAKEN_ON), self.key(packing, "::")]
        return OUTBOX, [self.key(packing), self.key(packing, ":locks")], args


@dataclass(slots=True, eq=False, repr=False)
class EndParking(_OutboxCall):
    """Forget the message with a token."""

    token: str

    def encode(self, packing: Packing) -> Encoded:
        return END, [self.messages(packing), self.key(packing)], [self.token, self.name]


@dataclass(slots=True, eq=False, repr=False)
class LookAfter(_OutboxCall):
    """Poll a lock for its parked messages, and note when to do so again."""

    def encode(self, packing: Packing) -> Encoded:
        own = [self.key(packing, ":locks"), self.messages(packing), self.key(packing)]
        keys = [*packing.granting_keys(self.name), *own]
        return LOOK, keys, [self.name, str(LOOK_WITHIN), f"@{self.outbox}"]


@dataclass(slots=True, eq=False, repr=False)
class Unpark(_OutboxCall):
    """Let messages whose tokens begin with ``prefix`` leave the queue, to be published without it.

    Answers how many they are.
    """

    prefix: str

    def encode(self, packing: Packing) -> Encoded:
        keys = [*packing.granting_keys(self.name), self.key(packing)]
        return UNPARK, keys, [f"@{self.outbox}", self.name, self.prefix]
