"""The examinations of scripts and channels, which some services lack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.management.console.doctor.targets import Finding, Target, fail, ok, warn
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import listening_connection

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
POLL = 'Set "OPTIONS": {"WAIT": "poll"}; waiters then poll.'


def is_unknown(error: Exception) -> bool:
    """Whether the server does not have the command."""
    text = str(error).lower()
    return "unknown command" in text or "unsupported command" in text


def examine_scripts(client: Any, target: Target) -> Iterator[Finding]:
    """Does it run scripts with the keys that locks need? Permissions are tried elsewhere."""
    if not target.scripted:
        return
    if error := _refusal(client, "return 1"):
        remedy = f"Use the backend {GETSET!r}, which needs no scripts."
        yield fail("scripts", f"not supported: {error}", remedy)
        return
    if target.member:
        if error := _refusal(client, "return #redis.call('INFO', 'server')"):
            yield fail(
                "scripts",
                f"scripts can't call INFO, which detects a restart: {error}",
                "Use plain Redis or Valkey for the servers of a quorum.",
            )
            return
    elif not target.packing.shard:
        # Only the list on which a waiter pops its grant is not named in KEYS.
        key = f"{target.packing.queue_prefix}doctor"
        if error := _refusal(client, "return redis.call('EXISTS', ARGV[1])", key):
            found = f"scripts can't access keys that are not in KEYS: {error}"
            if target.wait == "blpop":
                remedy = 'Set "OPTIONS": {"WAIT": "poll"}; WAIT "blpop" needs such a key.'
                yield fail("scripts", found, remedy)
            else:
                remedy = 'Do not wait with wait="blpop"; "queue" and "poll" need no such key.'
                yield warn("scripts", found, remedy)
            return
    yield ok("scripts", "they run")


def _refusal(client: Any, script: str, *arguments: str) -> str:
    """Return why a script does not run, ``""`` if it does or permission is denied."""
    try:
        client.eval(script, 0, *arguments)
    except NoPermissionError:
        return ""
    except ResponseError as error:
        text = str(error)
        return "" if "NOPERM" in text or "permission" in text else without_passwords(text)
    return ""


def examine_channels(client: Any, target: Target) -> Iterator[Finding]:
    """Does a message arrive, and does PUBLISH count its receivers?"""
    if target.wait != "queue":
        return
    shard, channel = target.packing.shard, target.channel("doctor")
    publish, subscribe = ("SPUBLISH", "SSUBSCRIBE") if shard else ("PUBLISH", "SUBSCRIBE")
    connection = listening_connection(target.model())
    try:
        connection.connect()
        connection.send_command(subscribe, channel)
        connection.read_response()
        began = time.monotonic()
        if not client.execute_command(publish, channel, "doctor"):
            found = f"{subscribe} works, but {publish} finds no receiver: waiters count as dead"
            yield fail("channels", found, POLL)
            return
        try:
            connection.read_response()
        except TimedOut:
            yield fail("channels", f"a message sent with {publish} did not arrive", POLL)
            return
        took = time.monotonic() - began
    except NoPermissionError:
        return  # examine_permissions() reports it
    except ResponseError as error:
        if not (shard and is_unknown(error)):  # else an old server without sharded channels
            yield fail("channels", f"no pub/sub: {without_passwords(str(error))}", POLL)
        return
    finally:
        with suppress(RedisError, OSError):
            connection.disconnect()
    yield ok("channels", f"a message arrives after {took * 1000:.2f} ms")
