"""Tries each command that locks need, as the server's user, and leaves nothing behind."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from django_redis_lock.backends.getset.exchanges import NAME
from django_redis_lock.management.console.doctor.services import is_unknown
from django_redis_lock.management.console.doctor.targets import Finding, Target, fail, ok, warn
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import listening_connection

Try = tuple[str, str, tuple[Any, ...]]
"""A command, the pattern of its key or channel, and its arguments."""


def examine_permissions(client: Any, target: Target) -> Iterator[Finding]:
    """May the user run all commands? They are tried on unused keys, or change nothing."""
    trial = Trial(client, target)
    missing = trial.run()
    spare = _spare(target)
    if missing:
        found = f"user {target.user} lacks: {' '.join(missing)}"
        remedy = f"ACL SETUSER {target.user} {' '.join(missing)}"
        if spare.keys() >= {*missing}:
            without = " and ".join(sorted({spare[word] for word in missing}))
            remedy += f", or do without {without}."
            yield warn("permissions", found, remedy)
        else:
            yield fail("permissions", found, remedy)
    elif not trial.unknown:
        yield ok("permissions", f"all {len(trial.commands)} commands that locks need")
    for command, error in trial.failed.items():
        yield fail("permissions", f"{command}: {error}", "Check the server's state and log.")
    others = {f"+{command.lower()}" for command in trial.unknown - _REPORTED_ELSEWHERE}
    if others:
        found = f"the server does not know: {' '.join(word[1:].upper() for word in sorted(others))}"
        if not target.scripted and others <= {*_AUDIT}:
            yield warn("permissions", f"{found}: no forced releases and no history")
        else:
            yield fail("permissions", found, "Use plain Redis or Valkey for the locks.")


def _spare(target: Target) -> dict[str, str]:
    """Return what locks can do without, by the words of the ACL rule that it needs."""
    spare: dict[str, str] = {}
    if not target.scripted:
        audit = {*_AUDIT, f"~{target.packing.audit_key}"}
        spare |= dict.fromkeys(audit, "forced releases and history")
    return spare


_REMOVERS = {"+lrem", "+lpop", "+del"}
_ADDERS = {"RPUSH", "LPUSH", "SETNX", "GETSET", "INCR"}
_REPORTED_ELSEWHERE = {"EVAL", "EVALSHA", "PUBLISH", "SUBSCRIBE", "SPUBLISH", "SSUBSCRIBE"}
"""Commands of ``examine_scripts()`` and ``examine_channels()``."""
_AUDIT = ("+xadd", "+xrevrange")
_EXPECTED = (
    "No matching script",  # EVALSHA is allowed
    "greater than 0-0",  # XADD is allowed
    "READONLY",  # examine_replicas() reports it
    "read only",
)


class Trial:
    def __init__(self, client: Any, target: Target) -> None:
        self._client = client
        self._target = target
        self._packing = target.packing
        self._prefix = target.backend.key_prefix
        self._wait = target.wait
        self.commands: set[str] = set()
        """The commands that were tried, in lower case."""
        self.failed: dict[str, str] = {}
        """Commands that failed for another reason, and why."""
        self.unknown: set[str] = set()
        """Commands that the server does not have."""

    def run(self) -> list[str]:
        """Return the words of the ACL rule that the user lacks."""
        missing: dict[str, None] = {}
        scripted = self._target.scripted
        removers = _REMOVERS if scripted else {"+del"}
        for attempt in self._attempts() if scripted else self._attempts_without_scripts():
            if attempt[0] in _ADDERS and missing.keys() >= removers:
                continue  # what it adds could not be removed
            missing |= self._lacks(attempt, self._client.execute_command)
        connection = listening_connection(self._target.model())

        def send(*words: Any) -> None:
            connection.send_command(*words)
            connection.read_response()

        try:
            for attempt in self._attempts_apart():
                missing |= self._lacks(attempt, send)
        finally:
            with suppress(RedisError, OSError):
                connection.disconnect()
        return list(missing)

    def _attempts(self) -> Iterator[Try]:
        prefix, packing = self._prefix, self._packing
        nobody = f"doctor-{secrets.token_hex(8)}"
        lock, of_lock = packing.lock_prefix + nobody, f"~{prefix}:*"
        queue, of_queue = packing.queue_prefix + nobody, f"~{prefix}-queue:*"
        index, fence, heard = packing.index_key, packing.fence_key, packing.heard_key
        of_shards = ":*" if packing.shard else ""
        of_index, of_fence, of_audit, of_heard = (
            f"~{prefix}-{kind}{of_shards}" for kind in ("index", "fence", "audit", "heard")
        )
        yield "EVAL", "", ("return 1", 0)
        yield "EVALSHA", "", ("0" * 40, 0)  # there is no such script
        yield "EXISTS", of_lock, (lock,)
        yield from self._selecting()
        if packing.shard:
            yield "CLUSTER SLOTS", "", ()
        if self._target.replicas:
            yield "WAIT", "", (0, 1)
        yield "TIME", "", ()
        for command in ("GET", "PTTL", "PERSIST", "DEL"):
            yield command, of_lock, (lock,)
        for command, *arguments in (("LREM", 0, "doctor"), ("LPOP",)):
            yield command, of_queue, (queue, *arguments)  # while the queue is empty
        yield "PEXPIRE", of_lock, (lock, 1)
        yield "SET", of_lock, (lock, "doctor", "NX", "PX", 1)  # expires in a millisecond
        yield "LLEN", of_queue, (queue,)
        yield "LRANGE", of_queue, (queue, 0, -1)
        yield "LPOS", of_queue, (queue, "doctor")
        yield "RPUSH", of_queue, (queue, "doctor")
        yield "LPUSH", of_queue, (queue, "doctor")
        yield "LINSERT", of_queue, (queue, "BEFORE", "", "doctor")  # before what is not there
        for command, *arguments in (("LREM", 0, "doctor"), ("LPOP", 2), ("DEL",)):
            yield command, of_queue, (queue, *arguments)  # any of them removes it
        yield "ZADD", of_index, (index, "XX", 0, nobody)
        yield "ZREM", of_index, (index, nobody)
        yield "ZRANGEBYSCORE", of_index, (index, 1, 0)
        yield "ZRANGE", of_index, (index, 1, 0)
        yield "ZCARD", of_index, (index,)
        yield "ZREM", of_heard, (heard, nobody)
        yield "ZSCORE", of_heard, (heard, nobody)
        yield "GET", of_fence, (fence,)
        yield "SET", of_fence, (fence, 0, "NX", "PX", 1)  # no change, or gone in a millisecond
        yield from self._auditing(packing.audit_key, of_audit)
        if self._target.member:
            yield "INFO", "", ("server",)
            yield "GET", f"~{prefix}-server", (f"{prefix}-server",)
        if self._wait == "queue":
            publish = "SPUBLISH" if packing.shard else "PUBLISH"
            yield publish, f"&{prefix}-grant:*", (self._target.channel(nobody), "doctor")

    def _selecting(self) -> Iterator[Try]:
        if database := self._target.pool.connection_kwargs.get("db"):
            yield "SELECT", "", (database,)

    def _auditing(self, part: str, of_part: str) -> Iterator[Try]:
        yield "XADD", of_part, (part, "0-0", "event", "doctor")  # an invalid id
        yield "XREVRANGE", of_part, (part, "+", "-", "COUNT", 1)

    def _attempts_without_scripts(self) -> Iterator[Try]:
        prefix = self._prefix
        options = self._target.backend.params.get("OPTIONS") or {}
        key = str(options.get("KEY", f"{prefix}:{NAME}"))
        nobody = f"doctor-{secrets.token_hex(8)}"
        lock, of_lock = key.replace(NAME, nobody), f"~{key.replace(NAME, '*')}"
        index, of_index = f"{prefix}-index", f"~{prefix}-index"
        yield from self._selecting()
        yield "TIME", "", ()
        for command in ("GET", "DEL"):
            yield command, of_lock, (lock,)
        yield "SET", of_lock, (lock, "1", "XX")
        for command, *arguments in (("SETNX", "1"), ("GETSET", "1"), ("INCR",)):
            yield command, of_lock, (lock, *arguments)
            yield "DEL", of_lock, (lock,)
        claim = f"{prefix}-claim:{nobody}"
        yield "SET", f"~{prefix}-claim:*", (claim, "doctor", "NX", "PX", 1)
        yield "GET", f"~{prefix}-fence", (f"{prefix}-fence",)
        yield "ZADD", of_index, (index, "XX", 0, nobody)
        yield "ZREM", of_index, (index, nobody)
        yield "ZREMRANGEBYSCORE", of_index, (index, 1, 0)
        yield "ZRANGEBYSCORE", of_index, (index, 1, 0)
        audit = self._packing.audit_key
        yield from self._auditing(audit, f"~{audit}")

    def _attempts_apart(self) -> Iterator[Try]:
        """Yield commands that change the state of their connection, or block it."""
        prefix = self._prefix
        if self._wait == "queue":
            subscribe = "SSUBSCRIBE" if self._packing.shard else "SUBSCRIBE"
            yield subscribe, f"&{prefix}-grant:*", (self._target.channel("doctor"),)
        elif self._wait == "blpop":
            yield "BLPOP", f"~{prefix}-grant:*", (f"{prefix}-grant:doctor", 0.01)

    def _lacks(self, attempt: Try, send: Callable[..., object]) -> dict[str, None]:
        """Send a command; return the word of the ACL rule that it lacks, if any."""
        command, pattern, arguments = attempt
        self.commands.add(command.lower())
        try:
            send(command, *arguments)
        except (RedisError, OSError) as error:
            text = without_passwords(str(error))
            if is_unknown(error):
                self.unknown.add(command)
            elif isinstance(error, NoPermissionError) or "NOPERM" in text:  # inside EXEC
                return {f"+{command.lower()}" if "command" in text else pattern: None}
            elif not any(expected in text for expected in _EXPECTED):
                self.failed[command] = text
        return {}
