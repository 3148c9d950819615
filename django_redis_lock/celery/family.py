"""Which processes come from one worker, and which of them are dead."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django_redis_lock.identity import current_process
from django_redis_lock.records import Holder

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
    return not _lives(holder.pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or gone just now
        return True
    return state not in "ZX"  # killed, and not yet collected by its parent
