"""Whether the server's user may do what locks need: each command is tried, and leaves nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.connections import listening_connection
from django_redis_lock.console.findings import FAIL, OK, Finding

CHECK = "permissions"
Try = tuple[str, str, tuple[Any, ...]]
"""A command, the pattern of the key or channel that it is tried on, and its arguments."""


def examine_permissions(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    """Try each command on keys that nobody uses, or in a way that changes nothing."""
    trial = _Trial(client, backend)
    missing = trial.run()
    if missing:
        user = client.connection_pool.connection_kwargs.get("username") or "default"
        yield Finding(
            FAIL,
            CHECK,
            f"user {user} may not: {' '.join(missing)}",
            f"ACL SETUSER {user} {' '.join(missing)}",
        )
    else:
        yield Finding(OK, CHECK, f"all {len(trial.commands)} commands that locks need")
    for command, error in trial.failed.items():
        yield Finding(FAIL, CHECK, f"{command}: {error}", "See what hinders the server.")


_REMOVERS = {"+lrem", "+lpop", "+del"}
_EXPECTED = (
    "No matching script",  # of EVALSHA, and so it is allowed
    "greater than 0-0",  # of XADD, likewise
    "READONLY",  # what a replica says is told by another examination
    "read only",
)


class _Trial:
    def __init__(self, client: Any, backend: RedisLockBackend) -> None:
        self._client = client
        self._pool = client.connection_pool
        self._packing = backend.packing_at(self._pool)
        self._prefix = backend.key_prefix
        self._waits_for_replicas = backend.replicas is not None
        self._wait = backend.wait
        self.commands: set[str] = set()
        """The commands that were tried, in lower case."""
        self.failed: dict[str, str] = {}
        """Those that failed for another reason than permission, and why."""

    def run(self) -> list[str]:
        """Return the words of an ACL rule that the user lacks."""
        missing: dict[str, None] = {}
        for attempt in self._attempts():
            if attempt[0] in {"RPUSH", "LPUSH"} and missing.keys() >= _REMOVERS:
                continue  # what it adds could not be removed
            if lacking := self._lacks(attempt):
                missing[lacking] = None
        for lacking in self._lacks_apart():
            missing[lacking] = None
        return list(missing)

    def _attempts(self) -> Iterator[Try]:
        prefix, packing = self._prefix, self._packing
        nobody = f"doctor-{secrets.token_hex(8)}"
        lock, of_lock = packing.lock_prefix + nobody, f"~{prefix}:*"
        queue, of_queue = packing.queue_prefix + nobody, f"~{prefix}-queue:*"
        index, fence, audit = packing.index_key, packing.fence_key, packing.audit_key
        heard = packing.heard_key
        of_shards = ":*" if packing.shard else ""
        of_index, of_fence, of_audit, of_heard = (
            f"~{prefix}-{kind}{of_shards}" for kind in ("index", "fence", "audit", "heard")
        )
        yield "EVAL", "", ("return 1", 0)
        yield "EVALSHA", "", ("0" * 40, 0)  # there is no such script
        yield "EXISTS", of_lock, (lock,)
        if database := self._pool.connection_kwargs.get("db"):
            yield "SELECT", "", (database,)
        if packing.shard:
            yield "CLUSTER SLOTS", "", ()
        if self._waits_for_replicas:
            yield "WAIT", "", (0, 1)
        yield "TIME", "", ()
        for command in ("GET", "PTTL", "PERSIST", "DEL"):
            yield command, of_lock, (lock,)
        for command, *arguments in (("LREM", 0, "doctor"), ("LPOP",)):
            yield command, of_queue, (queue, *arguments)  # before anything is there to be removed
        yield "PEXPIRE", of_lock, (lock, 1)
        yield "SET", of_lock, (lock, "doctor", "NX", "PX", 1)  # gone in a millisecond
        yield "LLEN", of_queue, (queue,)
        yield "LRANGE", of_queue, (queue, 0, -1)
        yield "LPOS", of_queue, (queue, "doctor")
        yield "RPUSH", of_queue, (queue, "doctor")
        yield "LPUSH", of_queue, (queue, "doctor")
        for command, *arguments in (("LREM", 0, "doctor"), ("LPOP", 2), ("DEL",)):
            yield command, of_queue, (queue, *arguments)  # whichever is allowed removes it
        yield "ZADD", of_index, (index, "XX", 0, nobody)
        yield "ZREM", of_index, (index, nobody)
        yield "ZRANGEBYSCORE", of_index, (index, 1, 0)
        yield "ZREM", of_heard, (heard, nobody)
        yield "GET", of_fence, (fence,)
        yield "SET", of_fence, (fence, 0, "NX", "PX", 1)  # there is one, or there soon is none
        yield "XADD", of_audit, (audit, "0-0", "event", "doctor")  # an id that no entry can have
        yield "XREVRANGE", of_audit, (audit, "+", "-", "COUNT", 1)
        if self._wait == "queue":
            publish = "SPUBLISH" if packing.shard else "PUBLISH"
            yield publish, f"&{prefix}-grant:*", (self._channel(nobody), "doctor")

    def _channel(self, process: str) -> str:
        shard = f"{{{self._packing.shard}}}:" if self._packing.shard else ""
        return f"{self._prefix}-grant:{shard}{process}"

    def _attempts_apart(self) -> Iterator[Try]:
        """Yield what leaves a mark on its connection, or blocks it."""
        prefix = self._prefix
        if self._wait == "queue":
            subscribe = "SSUBSCRIBE" if self._packing.shard else "SUBSCRIBE"
            yield subscribe, f"&{prefix}-grant:*", (self._channel("doctor"),)
        elif self._wait == "blpop":
            yield "BLPOP", f"~{prefix}-grant:*", (f"{prefix}-grant:doctor", 0.01)

    def _lacks(self, attempt: Try) -> str:
        command, pattern, arguments = attempt
        self.commands.add(command.lower())
        try:
            self._client.execute_command(command, *arguments)
        except (RedisError, OSError) as error:
            return self._word(command, pattern, error)
        return ""

    def _lacks_apart(self) -> Iterator[str]:
        connection = listening_connection(self._pool)
        try:
            for command, pattern, arguments in self._attempts_apart():
                self.commands.add(command.lower())
                try:
                    connection.send_command(command, *arguments)
                    connection.read_response()
                except (RedisError, OSError) as error:
                    if lacking := self._word(command, pattern, error):
                        yield lacking
        finally:
            with suppress(RedisError, OSError):
                connection.disconnect()

    def _word(self, command: str, pattern: str, error: Exception) -> str:
        """Return the word of the rule that an error asks for, if it is about one."""
        text = str(error)
        refused = isinstance(error, NoPermissionError) or "NOPERM" in text  # of EXEC, within
        if refused or "unknown command" in text.lower():
            return f"+{command.lower()}" if "command" in text else pattern
        if not any(expected in text for expected in _EXPECTED):
            self.failed[command] = text
        return ""
