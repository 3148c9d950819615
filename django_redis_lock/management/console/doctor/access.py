"""The examination of who can use a server without a password."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.targets import Finding, Target, fail, ok, warn
from django_redis_lock.transport.connections import listening_connection

SET_ONE = "CONFIG SET requirepass, and add the password to LOCATION"


def examine_access(client: Any, target: Target) -> Iterator[Finding]:
    """Does it need a password, and if not, who can reach it?"""
    kwargs = target.model().connection_kwargs
    if "path" in kwargs:
        return
    limit = ""
    try:
        _free_without_password(target)
    except AuthenticationError:
        yield ok("access", "a password is required")
        return
    except NoPermissionError as error:
        limit = reason(error)
    except (RedisError, OSError) as error:
        found = f"not known: whether a password is required: {reason(error)}"
        yield warn("access", found, "Fix the error, or try to connect without a password.")
        return
    host = kwargs.get("host", "localhost")
    danger = _danger(client, host)
    if danger is None:
        yield ok("access", f"no password is required, but {host} is not a public address")
    elif limit:
        found = f"not known: what clients may do without a password: {limit}"
        yield warn("access", found, danger.remedy)
    else:
        yield danger


def _danger(client: Any, host: str) -> Finding | None:
    """Return a finding if a server without a password can be reached from elsewhere."""
    if is_public(host):
        return fail(
            "access",
            f"{host} is a public address without a password: anybody can take and free every lock",
            f"{SET_ONE}; or bind to a private address.",
        )
    config: dict[str, Any] = {}
    with suppress(RedisError):
        for option in ("bind", "protected-mode"):
            config |= client.config_get(option)
    wide = [address for address in str(config.get("bind", "")).split() if _is_wide(address)]
    if (wide or config.get("bind") == "") and config.get("protected-mode") == "no":
        return warn(
            "access",
            f"no password is required, and it listens on {' '.join(wide) or 'every address'}: "
            "anybody who reaches this machine can take and free every lock",
            f"{SET_ONE}; or CONFIG SET bind to a private address, or protected-mode yes.",
        )
    return None


def _free_without_password(target: Target) -> None:
    """Delete a lock that does not exist, without a password.

    Other commands prove less: ``PING``, for one, may be the only one allowed or forbidden.
    """
    model = target.model(db=0)
    for word in ("username", "password", "credential_provider", "client_name"):
        model.connection_kwargs.pop(word, None)
    connection = listening_connection(model)
    try:
        connection.connect()
        connection.send_command("DEL", f"{target.packing.lock_prefix}doctor-{token_hex(8)}")
        connection.read_response()
    finally:
        with suppress(RedisError, OSError):
            connection.disconnect()


def is_public(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_global for item in found)


def _is_wide(bound: str) -> bool:
    """Whether an address of ``bind`` means all addresses, or is public."""
    bound = bound.removeprefix("-")
    if bound in ("*", "0.0.0.0", "::", "::*"):  # noqa: S104 - nothing is bound here
        return True
    try:
        return ipaddress.ip_address(bound).is_global
    except ValueError:
        return False
