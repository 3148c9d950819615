"""Which processes come from one worker, and which of them are dead."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import current_process

FAMILY = secrets.token_hex(8)
"""Shared by a worker and the children that it forks, and by nobody else.

Only within a family does the number of a process tell whether it lives: machines and containers
may share a host name, and each counts its processes for itself.
"""


def is_dead(holder: Holder) -> bool:
    """Whether a holder is known to have died: a process of this family that is no more.

    A lock with a ``state`` is kept by no process, but for a message, or for a rest.
    """
    ours = holder.metadata.get("worker") == FAMILY and holder.host == current_process().host
    if not ours or holder.metadata.get("state") or holder.pid is None:
        return False
    return not lives(holder.pid)


def lives(pid: int, began: int = 0) -> bool:
    """Whether a process of this machine runs; one that is dead and not yet collected does not.

    With ``began``, by ``began_at``, a later process of the same number is another one.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, so it is not the one that is meant, or changed user
        pass
    stat = _stat(pid)
    if stat is None:
        return True
    return stat[0] not in "ZX" and began in (0, int(stat[19]))


def began_at(pid: int) -> int:
    """Return when a process began, in ticks since the machine did; 0 where that can't be known."""
    stat = _stat(pid)
    return 0 if stat is None else int(stat[19])


def _stat(pid: int) -> list[str] | None:
    """Return what Linux tells of a process from its state on; ``None`` elsewhere."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or gone just now
        return None
    return stat if len(stat) > 19 else None
