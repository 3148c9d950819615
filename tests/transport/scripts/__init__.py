"""The Lua scripts, called as the backends call them: what they return, write and send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from django_redis_lock.protocol.lease import token_id
from django_redis_lock.transport.packing import (
    ACQUIRE,
    FORCE_RELEASE,
    RELEASE,
    RENEW,
    TAKE_OVER,
    Script,
)

RECORD = '{"host":"here"}'
CHANNEL = "process-1"
LEASE = 30_000
REFUSED = "ACL failure|can.t run this command"
"""What servers tell a user who may not call a command."""


class Keys:
    """The keys of one lock, and calls of scripts with them."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.name = name
        self.all = [
            f"{name}:{key}"
            for key in ("lock", "queue", "index", "fence", "heard", "limits", "permits")
        ]
        self.lock, self.queue, self.index, self.fence, self.heard = self.all[:5]
        self.limits, self.permits = self.all[5:]
        self.queues = f"{name}:queues"

    def call(self, script: Script, keys: list[str], *arguments: object) -> Any:
        return self.client.eval(script.source, len(keys), *keys, *map(str, arguments))

    def acquire(self, token: str, channel: str = "", lease: int = LEASE, *more: str) -> Any:
        keys = [*self.all, self.queues] if channel else self.all
        return self.call(ACQUIRE, keys, token, lease, RECORD, self.name, channel, *more)

    def release(self, token: str, *more: str) -> Any:
        return self.call(RELEASE, self.all, token, self.name, *(more or [""]))

    def renew(self, token: str, lease: int | str) -> Any:
        own = [self.lock, self.queue, self.permits]
        return self.call(RENEW, [self.index, *own], self.name, token, lease)

    def take_over(self, token: str, former: str, lease: int = LEASE, record: str = RECORD) -> Any:
        digest = token_id(former.encode())
        return self.call(TAKE_OVER, self.all, token, lease, record, self.name, digest)

    def force(
        self, token: str, *, sent_before: bool = False, most: int = 1000, why: str = "stuck"
    ) -> Any:
        digest, entry = token_id(token.encode()), ("event", "forced", "why", why)
        arguments = (self.name, digest, most, int(sent_before), *entry)
        return self.call(FORCE_RELEASE, [*self.all, f"{self.name}:audit"], *arguments)

    def now(self) -> int:
        """Return the server's clock in ms."""
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def hold(self, token: str, lease: int | None = LEASE, *, name: str | None = None) -> None:
        """Write the lock as its holder's, without adding it to the index."""
        self.client.set(name or self.lock, f"{token} 7 {RECORD}", px=lease)

    def hand_off(self, token: str, due: int, lease: int = LEASE, channel: str = CHANNEL) -> None:
        """Write the lock as it is after a hand-off whose claim is due in so many ms."""
        mark = f'"unclaimed":"{self.now() + due} {lease} {channel}",'
        self.client.set(self.lock, f"{token} 7 {{{mark}{RECORD[1:]}", px=lease + 2000)

    def wait(self, *waiters: tuple[str, str], lease: int = LEASE, record: str = RECORD) -> None:
        """Add waiters to the queue, as (channel, token)."""
        for channel, token in waiters:
            self.client.rpush(self.queue, f"{channel} {token} {lease} {record}")

    def waiting(self) -> list[str]:
        """Return the tokens of the waiters."""
        return [entry.split()[1] for entry in self.client.lrange(self.queue, 0, -1)]

    @property
    def holder(self) -> str | None:
        """The token that holds the lock."""
        value = self.client.get(self.lock)
        return value and value.split()[0]

    def end(self) -> float | None:
        """Return the end of the lease in ms, as the index has it."""
        return self.client.zscore(self.index, self.name)


@contextmanager
def listening(client: redis.Redis, *channels: str, sharded: bool = False) -> Iterator[Any]:
    """Subscribe to channels; yield what returns the messages so far as (channel, text)."""
    with client.pubsub() as subscription:

        def messages() -> list[tuple[str, str]]:
            client.execute_command("SPUBLISH" if sharded else "PUBLISH", channels[0], "end")
            found = []
            while (message := subscription.get_message(timeout=5))["data"] != "end":
                found.append((message["channel"], message["data"]))
            return found

        (subscription.ssubscribe if sharded else subscription.subscribe)(*channels)
        for _ in channels:
            assert subscription.get_message(timeout=5)["type"].endswith("subscribe")
        yield messages
