"""Tells whether a holder is alive, stopped or dead, as far as this host knows its process."""

from __future__ import annotations

import socket
from enum import StrEnum
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import STOPPED, current_process, state_of
from django_redis_lock.support.text import visible


class Life(StrEnum):
    """Whether a holder is still there."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Its process exists and does not run, as after ``SIGSTOP``."""
    DEAD = "dead"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Whether a holder is alive, and why, in the current language."""

    life: Life
    why: str


def judge(holder: Holder) -> Verdict:
    """Return whether a holder is alive. It is dead only if this host knows its process is gone."""
    if state := holder.metadata.get("state"):  # no process holds it
        if state == "queued":
            return Verdict(Life.UNKNOWN, _("its message waits in a queue"))
        return Verdict(Life.UNKNOWN, _("no process holds it, until its lease ends"))
    if holder.host is None:
        return Verdict(Life.UNKNOWN, _("another program holds it"))
    life = Life.UNKNOWN
    if holder.host != socket.gethostname():
        why = _("it runs on %(host)s, not here")
    elif (holder.pid_space or "") != current_process().pid_space:
        # Records of older versions have no PID namespace. Without /proc the host name decides.
        runs = _("it runs in another container of %(host)s")
        why = runs if holder.pid_space else _("it may run in another container of %(host)s")
    elif not (process := state_of(holder.pid, holder.pid_began)):
        life, why = Life.DEAD, _("process %(pid)s is gone")
    elif process in STOPPED:
        life, why = Life.STOPPED, _("process %(pid)s is stopped")
    else:
        life, why = Life.ALIVE, _("its process lives")
    return Verdict(life, why % {"host": visible(holder.host), "pid": holder.pid})
