"""What the package uses of redis-py beyond its documented API.

All of it stands here. It was seen to work with redis-py 5.2 to 8.1, and
``tests/transport/test_redis_py.py`` fails first when a release changes it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from redis import exceptions
from redis.connection import parse_url as _parse_url

BROKEN = (exceptions.RedisError, OSError, AttributeError, TypeError, ValueError)
"""What a broken connection raises. The last three come from redis-py's own code if another thread
closes the connection."""


@functools.cache
def parameters_of(connection_class: Any) -> frozenset[str]:
    # Most classes pass on **kwargs, so those of the base classes count too.
    names: set[str] = set()
    for kind in connection_class.__mro__:
        if "__init__" in vars(kind):
            names |= inspect.signature(kind.__init__).parameters.keys()
    return frozenset(names - {"self", "args", "kwargs"})


def parse_url(url: str) -> dict[str, Any]:
    """Return the arguments that a URL stands for. Raises ``ValueError``."""
    arguments: dict[str, Any] = _parse_url(url)  # type: ignore[no-untyped-call]
    return arguments


def socket_of(connection: Any) -> Any:
    """Return the socket; ``None`` while there is none, or in a class that keeps it elsewhere."""
    return getattr(connection, "_sock", None)


_BY_CODE = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MASTERDOWN": exceptions.MasterDownError,
    "MOVED": exceptions.MovedError,
    "TRYAGAIN": exceptions.TryAgainError,
}
CLUSTER_ERRORS = tuple(_BY_CODE.values())
"""The errors of a server in a cluster that may end soon. Their texts lack the error code."""


def parse_error(connection: Any, text: str) -> Exception:
    """Return a server's error, with the class that redis-py 5.2 gives it only in a cluster."""
    error: Exception = connection._parser.parse_error(text)
    code, _, rest = str(error).partition(" ")
    known = _BY_CODE.get(code) if type(error) is exceptions.ResponseError else None
    return error if known is None or not rest else known(rest)
