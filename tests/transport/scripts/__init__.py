"""The Lua scripts, called as the backends call them: what they return, write and send."""

from __future__ import annotations

from itertools import count
from typing import Any

import redis

from django_redis_lock.protocol.lease import shared_record, token_id
from django_redis_lock.transport import packing

RECORD = '- {"host":"here"}'
PROCESS, OTHER = "c1-1", "c2-1"
"""Processes that subscribe to their channels."""
READER, SLOW = "i1-1", "i2-1.5000"
"""Processes that read their inboxes, one every 5 s."""
LEASE = 30_000


def digest(token: str) -> str:
    return token_id(token.encode())


def sharing(limit: int | None) -> str:
    """Return the record of a caller that asks for one of so many permits."""
    return shared_record(RECORD, limit)


class Keys:
    """The keys of one lock, and calls of scripts with them."""

    def __init__(self, client: redis.Redis, prefix: str, name: str = "name") -> None:
        self.client = client
        self.prefix = prefix
        self.name = name
        self.all = packing.Packing(prefix).granting_keys(name)
        self.lock, self.queue, self.index, self.fence, self.seen = self.all[:5]
        self.limits, self.permits = self.all[5:]
        self.own = [self.lock, self.queue, self.permits]
        self.due = self.key("due")
        self.audit = self.key("audit")
        self._positions = count(1)

    def key(self, kind: str, *parts: str) -> str:
        return ":".join([f"{self.prefix}-{kind}", *parts])

    def waiters(self, process: str) -> str:
        return self.key("waiters", process, self.name)

    def tokens(self, process: str) -> str:
        return self.key("tokens", process, self.name)

    # Calls.

    def call(self, script: packing.Script, keys: list[str], *arguments: object) -> Any:
        return self.client.eval(script.source, len(keys), *keys, *map(str, arguments))

    def acquire(self, token: str, process: str = "", lease: int = LEASE, *more: object) -> Any:
        return self.call(packing.ACQUIRE, self.all, token, lease, RECORD, self.name, process, *more)

    def share(
        self,
        token: str,
        process: str = "",
        *more: object,
        lease: int = LEASE,
        limit: int | None = 2,
    ) -> Any:
        arguments = (token, lease, sharing(limit), self.name, process, *more)
        return self.call(packing.ACQUIRE_SHARED, self.all, *arguments)

    def release(self, token: str, *more: str) -> Any:
        return self.call(packing.RELEASE, self.all, token, self.name, *(more or [""]))

    def give_up(self, token: str, *more: str) -> Any:
        return self.call(packing.RELEASE_SHARED, self.all, token, self.name, *(more or [""]))

    def renew(self, token: str, lease: int | str) -> Any:
        keys = [self.index, self.seen, *self.own]
        return self.call(packing.RENEW, keys, self.name, token, lease)

    def take_over(self, token: str, former: str, *more: str, lease: int = LEASE) -> Any:
        record, *rest = more or (RECORD,)
        arguments = (token, lease, record, self.name, digest(former), *rest)
        return self.call(packing.TAKE_OVER, self.all, *arguments)

    def force(
        self, token: str, *, sent_before: bool = False, most: int = 1000, why: str = "stuck"
    ) -> Any:
        entry = "event", "forced", "why", why
        arguments = (self.name, digest(token), most, int(sent_before), *entry)
        return self.call(packing.FORCE_RELEASE, [*self.all, self.audit], *arguments)

    def set_limit(self, limit: int | str) -> None:
        assert self.call(packing.SET_LIMIT, self.all, self.name, limit, "ann") == 1

    def beat(self, process: str = PROCESS, **last: str) -> tuple[int, list[str], list[str]]:
        """Send a heartbeat, with the last waiters of locks by name. Returns when the next is due in
        ms, the names in whose queues these are not, and messages."""
        arguments = [part for name, token in last.items() for part in (name, digest(token))]
        status, lost, *messages = self.call(
            packing.HEARTBEAT, packing.Packing(self.prefix).granting_keys(""), process, *arguments
        )
        now, due = status.split()
        assert abs(int(now) - self.now()) < 5_000
        return int(due), lost.split(), messages

    # What is there.

    def now(self) -> int:
        """Return the server's clock in ms."""
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def hold(self, token: str, lease: int | None = LEASE) -> None:
        """Write the lock as its holder's, without adding it to the index."""
        self.client.set(self.lock, f"{token} 7 - {RECORD}", px=lease)

    def last(self, fence: str | None) -> None:
        """Write the last fence; ``foreign`` stands for another program's data."""
        if fence == "foreign":
            self.client.rpush(self.fence, fence)
        elif fence is not None:
            self.client.set(self.fence, fence)

    def hand_off(self, token: str, due: int, lease: int = LEASE, process: str = PROCESS) -> None:
        """Write the lock as it is after a hand-off whose claim is due in so many ms."""
        claim = f"{self.now() + due}:{lease}:{process}"
        self.client.set(self.lock, f"{token} 7 {claim} {RECORD}", px=lease + 2000)

    def unclaimed(
        self, token: str, due: int, process: str = PROCESS, limit: int = 2, lease: int = LEASE
    ) -> None:
        """Write a permit as it is after a hand-off whose claim is due in so many ms."""
        until = self.now() + due
        fence = 7 + self.client.hlen(self.permits)
        value = f"- {fence} {until}:{lease}:{process} {sharing(limit)}"
        self.client.hset(self.permits, digest(token), value)
        self.client.zadd(self.lock, {digest(token): until})
        for key in (self.lock, self.permits):
            self.client.pexpire(key, max(self.client.pttl(key), lease))

    def wait(
        self,
        process: str,
        *tokens: str,
        lease: int = LEASE,
        record: str = RECORD,
        ago: int | None = 0,
    ) -> None:
        """Add waiters to the queue, of a process that was heard so many ms ago, if ever."""
        endless = process.startswith("@") or self.client.pttl(self.queue) == -1
        for token in tokens:
            position = next(self._positions)
            self.client.hset(self.tokens(process), digest(token), token)
            self.client.zadd(self.waiters(process), {f"{digest(token)} {lease} {record}": position})
            self.client.zadd(self.queue, {process: position}, nx=True)
        if not endless:
            self.client.pexpire(self.queue, 600_000)
        if ago is not None and not process.startswith("@"):
            self.client.zadd(self.seen, {process: self.now() - ago})

    def waiting(self) -> list[str]:
        """Return the tokens of the waiters, as each process has its position by its first."""
        found = []
        for process, first in self.client.zrange(self.queue, 0, -1, withscores=True):
            own = self.client.zrange(self.waiters(process), 0, -1, withscores=True)
            assert own[0][1] == first
            tokens = self.client.hgetall(self.tokens(process))
            found += [(position, tokens[entry.split()[0]]) for entry, position in own]
        return [token for _, token in sorted(found)]

    @property
    def holder(self) -> str | None:
        value = self.client.get(self.lock)
        return value and value.split()[0]

    def shared_by(self, *tokens: str) -> bool:
        """Whether these have the permits, of which both keys must know."""
        ids = set(self.client.zrange(self.lock, 0, -1))
        return ids == set(self.client.hkeys(self.permits)) == {digest(token) for token in tokens}

    def ends(self, token: str) -> float:
        """Return when a permit ends, in ms from now."""
        return float(self.client.zscore(self.lock, digest(token))) - self.now()

    def expire(self, *tokens: str, ago: int = 10) -> None:
        self.client.zadd(self.lock, {digest(token): self.now() - ago for token in tokens})

    def end(self) -> float | None:
        """Return the end of the lease in ms, as the index has it."""
        return self.client.zscore(self.index, self.name)
