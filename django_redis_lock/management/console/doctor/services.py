"""The examinations of scripts and channels, which some services lack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.targets import Target
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import listening_connection

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
POLL = 'Write "OPTIONS": {"WAIT": "poll"}: waiters then look from time to time.'


def is_unknown(error: Exception) -> bool:
    """Whether the server does not have the command."""
    text = str(error).lower()
    return "unknown command" in text or "unsupported command" in text


def examine_scripts(client: Any, target: Target) -> Iterator[Finding]:
    """Does it run scripts with the keys that locks need? Permissions are tried elsewhere."""
    if not target.scripted:
        return
    if error := _refusal(client, "return 1"):
        yield Finding(
            FAIL,
            "scripts",
            f"it runs none: {error}",
            f"Use the backend {GETSET!r}, which needs none.",
        )
        return
    if target.member:
        if error := _refusal(client, "return #redis.call('INFO', 'server')"):
            yield Finding(
                FAIL,
                "scripts",
                f"they may not look at INFO, by which a restart is noticed: {error}",
                "Use Redis or Valkey itself for the servers of a quorum.",
            )
            return
    elif not target.packing.shard:
        # Only the list on which a waiter pops its grant is not named in KEYS.
        key = f"{target.packing.queue_prefix}doctor"
        if error := _refusal(client, "return redis.call('EXISTS', ARGV[1])", key):
            pops = target.wait == "blpop"
            yield Finding(
                FAIL if pops else WARN,
                "scripts",
                f"they may touch no key that the call does not name: {error}",
                'WAIT "blpop" needs such a key: write "OPTIONS": {"WAIT": "poll"}.'
                if pops
                else 'WAIT "queue" and "poll" need none; do not wait with wait="blpop".',
            )
            return
    yield Finding(OK, "scripts", "they run")


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
    packing, prefix = target.packing, target.backend.key_prefix
    shard = f"{{{packing.shard}}}:" if packing.shard else ""
    channel = f"{prefix}-grant:{shard}doctor"
    publish, subscribe = ("SPUBLISH", "SSUBSCRIBE") if shard else ("PUBLISH", "SUBSCRIBE")
    connection = listening_connection(target.model())
    try:
        connection.connect()
        connection.send_command(subscribe, channel)
        connection.read_response()
        began = time.monotonic()
        receivers = client.execute_command(publish, channel, "doctor")
        if not receivers:
            yield Finding(
                FAIL,
                "channels",
                f"{subscribe} is taken, and {publish} finds nobody: all who wait count as dead",
                POLL,
            )
            return
        took = _arrives(connection, began)
        if took is None:
            yield Finding(FAIL, "channels", f"what {publish} took did not arrive", POLL)
            return
    except NoPermissionError:
        return  # examine_permissions() reports it
    except ResponseError as error:
        if shard and is_unknown(error):
            return  # an old server without sharded channels
        yield Finding(FAIL, "channels", f"no pub/sub: {without_passwords(str(error))}", POLL)
        return
    finally:
        with suppress(RedisError, OSError):
            connection.disconnect()
    yield Finding(OK, "channels", f"a message arrives after {took * 1000:.2f} ms")


def _arrives(connection: Any, began: float) -> float | None:
    """Return after how many seconds the message arrived, ``None`` if it did not."""
    try:
        connection.read_response()
    except TimedOut:
        return None
    return time.monotonic() - began
