"""Who can reach a server without a password."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from django_redis_lock.connections import listening_connection
from django_redis_lock.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.console.doctor.targets import Target

SET_ONE = "CONFIG SET requirepass, and write the password into LOCATION"


def examine_access(client: Any, target: Target) -> Iterator[Finding]:
    """Does it ask for a password, and if it does not, who can reach it?"""
    model = target.model(db=0)
    kwargs = model.connection_kwargs
    if "path" in kwargs:
        return
    if not _lets_anybody_in(model):
        yield Finding(OK, "access", "a stranger is not let in without a password")
        return
    host = kwargs.get("host", "localhost")
    if is_public(host):
        yield Finding(
            FAIL,
            "access",
            f"{host} is a public address, and no password is asked for: whoever finds it can take "
            "and free every lock",
            f"{SET_ONE}; or bind to a private address.",
        )
        return
    config: dict[str, Any] = {}
    with suppress(RedisError):
        for option in ("bind", "protected-mode"):
            config |= client.config_get(option)
    wide = [address for address in str(config.get("bind", "")).split() if _is_wide(address)]
    if (wide or config.get("bind") == "") and config.get("protected-mode") == "no":
        yield Finding(
            WARN,
            "access",
            f"no password is asked for, and it listens on {' '.join(wide) or 'every address'}: "
            "whoever reaches this machine can take and free every lock",
            f"{SET_ONE}; or CONFIG SET bind to a private address, or protected-mode yes.",
        )
    else:
        yield Finding(OK, "access", f"no password is asked for; {host} is no public address")


def _lets_anybody_in(model: Any) -> bool:
    """Try for real, as a user that gives no password; ``PING`` does nothing."""
    for secret in ("username", "password", "credential_provider"):
        model.connection_kwargs.pop(secret, None)
    connection = listening_connection(model)
    try:
        connection.connect()
        connection.send_command("PING")
        connection.read_response()
    except (RedisError, OSError):
        return False
    finally:
        with suppress(RedisError, OSError):
            connection.disconnect()
    return True


def is_public(host: str) -> bool:
    """Whether a host has an address that can be reached from everywhere."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_global for item in found)


def _is_wide(bound: str) -> bool:
    """Whether an address of ``bind`` is all of them, or a public one."""
    bound = bound.removeprefix("-")
    if bound in ("*", "0.0.0.0", "::", "::*"):  # noqa: S104 - nothing is bound here
        return True
    try:
        return ipaddress.ip_address(bound).is_global
    except ValueError:
        return False
