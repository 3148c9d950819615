"""The errors for callers when a server refuses a call or does not answer."""

from __future__ import annotations

import re

from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import FORCED_RELEASE, Call
from django_redis_lock.support.text import escape_unprintable, without_passwords
from django_redis_lock.transport.clients import is_read_only
from django_redis_lock.transport.redis_py import CLUSTER_ERRORS

_WHERE_IN_SCRIPT = re.compile(r"\.?\s*script: (?:\w+, )?on @user_script:\d+\.?$")
_NO_SCRIPTS = re.compile(r"(unknown|unsupported) command .?eval", re.IGNORECASE)
_NO_PERMISSION_FOR_SCRIPTS = re.compile(r"no permissions to run the 'eval", re.IGNORECASE)
_TOO_OLD = re.compile(r"syntax error|unknown redis command", re.IGNORECASE)
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}  # versions that know all commands of the scripts
NEEDED = " or ".join(f"{name} {major}.{minor}" for name, (major, minor) in OLDEST.items())
_WITHOUT_SCRIPTS = (
    "set BACKEND to 'django_redis_lock.backends.getset.GetSetLockBackend', which needs none"
)
# redis-py has no classes for these. Part of the call may have been carried out.
_IN_DOUBT = (
    "UNBLOCKED",  # a master that was demoted while it waited for replicas
    "replica instances",  # or before that
    "non local key",  # the slot moved away while the script ran
    "cluster is down",
)


def lock_error(call: Call, error: Exception, *, using: str, key_prefix: str) -> LockError:
    name = call.lock_name
    why = reason(error)
    if isinstance(error, ResponseError) and "WRONGTYPE" in why:
        from django_redis_lock.transport.parking import NoteTick, ReadTicks

        key_prefix += "-ticks" * isinstance(call, ReadTicks | NoteTick)
        return LockError(
            f"The data of lock {name!r} under {key_prefix!r} is from another program and can't be "
            f"used: {why}. Set another KEY_PREFIX.",
            name=name,
        )
    what = "refused" if refused(error) else "is not available"
    unavailable = LockUnavailable(f"LOCKS[{using!r}] {what}: {why}", name=name)
    unavailable.refused, unavailable.passing = refused(error), passes(error)
    unavailable.not_applied = unavailable.refused and isinstance(call, FORCED_RELEASE)
    return unavailable


def reason(error: Exception) -> str:
    """Return why a call failed, without secrets and invisible characters."""
    why = _WHERE_IN_SCRIPT.sub("", escape_unprintable(without_passwords(str(error))))
    if isinstance(error, MasterNotFoundError):
        return why.partition(" : ")[0]  # the rest lists the arguments of every connection
    if isinstance(error, ResponseError) and _NO_SCRIPTS.search(why):
        return f"the server has no Lua scripts ({why}); {_WITHOUT_SCRIPTS}"
    if isinstance(error, ResponseError) and _NO_PERMISSION_FOR_SCRIPTS.search(why):
        return f"{why}; allow scripts, or {_WITHOUT_SCRIPTS}"
    if isinstance(error, ResponseError) and _TOO_OLD.search(why):
        return f"{why}; the server may be too old: upgrade it to {NEEDED}, or newer"
    return why


def refused(error: Exception) -> bool:
    """Return whether the server refused the call, so that nothing was done."""
    return isinstance(error, ResponseError) and not _is_in_doubt(error)


def passes(error: Exception) -> bool:
    """Return whether it may end soon: silence, a failover, a moving slot, a slow script."""
    if not isinstance(error, ResponseError) or isinstance(error, CLUSTER_ERRORS):
        return True
    return is_read_only(error) or _is_in_doubt(error) or str(error).startswith("BUSY ")


def _is_in_doubt(error: Exception) -> bool:
    return any(part in str(error) for part in _IN_DOUBT)
