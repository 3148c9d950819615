"""Checks the URLs of servers; redis-py ignores much that it can't parse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import redis

from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.redis_py import OPTION_PARSERS, parameters_of

SCHEMES = ("redis://", "rediss://", "unix://")
_ENCODED = "percent-encoded, as urllib.parse.quote(password, safe='') gives it"
_DATABASE = re.compile(r"/?|/\d+/?", re.ASCII)
_OF_TEXT = re.compile(
    "client_name|decode_responses|encoding|encoding_errors|lib_name|lib_version|username|password"
    "|protocol"  # which it reads itself before redis-py 8
    "|ssl_(ca_certs|ca_data|ca_path|cert_reqs|certfile|ciphers|keyfile|password)"
)
"""The options that redis-py takes as text; it has a parser for each of the others."""


def problem_of(url: str, *, of_cache: bool = False) -> str | None:
    """Return what is wrong with the URL of a server, and what to write; ``None`` if it is valid.

    It continues a sentence that begins with the URL, and repeats no part that can be secret. The
    options are not checked in the LOCATION ``of_cache``, which adds options of its own.
    """
    if not url.startswith(SCHEMES):
        return f"does not begin with {', '.join(SCHEMES)}"
    if not url.isprintable() or " " in url:
        return "contains a blank or invisible character; write it percent-encoded"
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"has an invalid host; write [::1] for IPv6, and a password {_ENCODED}"
    is_socket, behind = parts.scheme == "unix", f"{parts.path}?{parts.query}"
    cut = "@" in behind and "@" not in parts.netloc and not (is_socket and not parts.netloc)
    if "#" in url or cut or ("@" in parts.path and not is_socket):
        return f"has '/', '?' or '#' in its user or password; write it {_ENCODED}"
    wrong = _problem_of_socket(parts) if is_socket else _problem_of_server(parts)
    return wrong or _problem_of_options(url, parts, of_cache)


def _problem_of_socket(parts: SplitResult) -> str | None:
    if parts.netloc and "@" not in parts.netloc:
        return "has a path that does not begin with '/'; write unix:///run/redis.sock"
    return None if parts.path.strip("/") else "has no path; write unix:///run/redis.sock"


def _problem_of_server(parts: SplitResult) -> str | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        wrong = "has a port that is not a number from 1 to 65535"
        if "@" in parts.netloc or parts.netloc.rpartition(":")[2].isdecimal():
            return wrong
        return f"{wrong}; write a password before the host, with '@' between, and {_ENCODED}"
    try:
        (parts.hostname or "").encode("idna")
    except UnicodeError:
        return "has an invalid host; write a name or an address"
    if not _DATABASE.fullmatch(parts.path):
        return "has a database that is not a number; write it after the port, such as /1"
    return None


def _problem_of_options(url: str, parts: SplitResult, of_cache: bool) -> str | None:
    takes = parameters_of(_KINDS[parts.scheme])
    known = {name for name in takes if _OF_TEXT.fullmatch(name)}
    known |= {"max_connections", *(OPTION_PARSERS.keys() & takes)}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known and not of_cache:
            return f"has the unknown option {name!r}; the options are {', '.join(sorted(known))}"
        if not value or not _is_valid(name, value):
            return f"has the option {name!r} with an invalid value"
    try:
        if not of_cache:
            check_pool(pool_from_url(url))
    except Exception as error:  # redis-py raises several classes
        return f"can't be used by redis-py: {error}"
    return None


def check_pool(pool: redis.ConnectionPool) -> None:
    """Make a connection as the pool would, without opening it. Raises what redis-py does."""
    pool.connection_class(**pool.connection_kwargs)


_KINDS = {
    "redis": redis.Connection,
    "rediss": redis.SSLConnection,
    "unix": redis.UnixDomainSocketConnection,
}


def _is_valid(name: str, value: str) -> bool:
    """Whether redis-py can parse the value of an option, and use the result."""
    read: Callable[[str], Any] | None = OPTION_PARSERS.get(name)  # type: ignore[assignment]
    if read is None:
        return True
    try:
        found = read(value)
    except (TypeError, ValueError):
        return False
    if name in ("socket_timeout", "socket_connect_timeout"):
        return bool(0 < found < math.inf)
    return not isinstance(found, int) or found >= 0
