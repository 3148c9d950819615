"""Tells which holders are dead or stopped, as this host or their Celery worker knows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_redis_lock.operators.workers import WorkersNotAsked, ask
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import STOPPED, current_process, state_of
from django_redis_lock.support.text import visible

REPLY_SECONDS = 2.0
"""Seconds that workers get to answer."""
TASKS_PER_QUESTION = 500


class Life(StrEnum):
    """Whether a holder, or the message that it stands for, is still there."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Its process exists and does not run, as after ``SIGSTOP``."""
    DEAD = "dead"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Whether a holder is alive, and why, in the current language. In doubt it is not known."""

    life: Life
    why: str

    @property
    def dead(self) -> bool:
        """Whether it is known to be dead."""
        return self.life is Life.DEAD


class _Workers(NamedTuple):
    """What Celery's workers answered."""

    tasks: set[str]
    """Ids of the tasks that some worker has."""
    families: dict[str, str]
    """Node names of the workers that answered, by the family id they share with their children."""
    lives: dict[tuple[str, int], Life]
    """Their processes that do not run, by (family id, process id)."""
    why: str
    """Why the tasks of the other workers are not known."""


def judge(
    holders: Iterable[Holder],
    notice: Callable[[str], None],
    seconds: float = REPLY_SECONDS,
    silence: str = "",
) -> list[tuple[Holder, Verdict]]:
    """Return a verdict on each holder. In doubt a holder is not dead.

    A holder is dead when this host, or the worker that started its process, knows that the process
    is gone. Workers get ``seconds`` to answer. A ``silence`` says why they did not answer a moment
    ago; they are not asked again then.
    """
    holders = list(holders)
    here = socket.gethostname()
    to_ask = [one for one in holders if _is_asked_of_workers(one, here)]
    workers = _ask_workers(to_ask, notice, seconds, silence) if to_ask else None
    asked = {id(one) for one in to_ask}
    return [
        (
            one,
            (workers and id(one) in asked and _of_task(one, workers)) or _of_process(one, here),
        )
        for one in holders
    ]


def _is_asked_of_workers(holder: Holder, here: str) -> bool:
    """Whether a task holds it and this host does not know its process."""
    known_here = holder.host == here and _is_among_ours(holder) and _state_of(holder)
    return bool(holder.task_id) and not _is_parked(holder) and not known_here


def _state_of(holder: Holder) -> str:
    return state_of(holder.pid, holder.pid_began)


def _is_among_ours(holder: Holder) -> bool:
    """Whether its process id belongs to this process's PID namespace.

    Records of older versions do not tell. Without /proc the host name decides.
    """
    return (holder.pid_space or "") == current_process().pid_space


def is_place(holder: Holder) -> bool:
    """Whether the lock is held for a message in a queue, whose sender may be gone."""
    return holder.metadata.get("state") == "queued"


def _is_parked(holder: Holder) -> bool:
    """Whether no process holds it: it is queued, detached, or kept after a run."""
    return bool(holder.metadata.get("state"))


def _of_process(holder: Holder, here: str) -> Verdict:
    if is_place(holder):
        return Verdict(Life.UNKNOWN, _("its message waits in a queue"))
    if _is_parked(holder):
        return Verdict(Life.UNKNOWN, _("no process holds it, until its lease ends"))
    if holder.host is None:
        return Verdict(Life.UNKNOWN, _("another program holds it"))
    life, state = Life.UNKNOWN, _state_of(holder)
    if holder.host != here:
        why = _("it runs on %(host)s, not here")
    elif not _is_among_ours(holder):
        runs = _("it runs in another container of %(host)s")
        why = runs if holder.pid_space else _("it may run in another container of %(host)s")
    elif not state:
        life, why = Life.DEAD, _("process %(pid)s is gone")
    elif state in STOPPED:
        life, why = Life.STOPPED, _("process %(pid)s is stopped")
    else:
        life, why = Life.ALIVE, _("its process lives")
    return Verdict(life, why % {"host": visible(holder.host), "pid": holder.pid})


def _of_task(holder: Holder, workers: _Workers) -> Verdict | None:
    """Return the workers' verdict; ``None`` if this host may know more."""
    family = holder.metadata.get("worker", "")
    of = {"host": visible(str(holder.host)), "pid": holder.pid}
    if node := workers.families.get(family):
        of["worker"] = visible(node)
        life = workers.lives.get((family, holder.pid or 0))
        if life is Life.STOPPED:
            return Verdict(life, _("process %(pid)s of %(worker)s is stopped") % of)
        if life is Life.DEAD and holder.task_id not in workers.tasks:
            return Verdict(life, _("process %(pid)s of %(worker)s is gone") % of)
    if holder.task_id in workers.tasks:
        return Verdict(Life.ALIVE, _("a worker has its task"))
    if node:
        return Verdict(Life.ALIVE, _("its process lives, says %(worker)s") % of)
    if holder.host == socket.gethostname():
        return None
    return Verdict(Life.UNKNOWN, _("it runs on %(host)s") % of + f"; {workers.why}")


def _ask_workers(
    holders: list[Holder], notice: Callable[[str], None], seconds: float, silence: str
) -> _Workers | None:
    """Ask Celery's workers about holders; return ``None`` if they can't be asked."""
    not_asked = _("Celery's workers can't be asked, so their tasks count as alive: %(reason)s")
    if silence:
        notice(not_asked % {"reason": silence})
        return None
    tasks: set[str] = set()
    lives: dict[tuple[str, int], Life] = {}
    families: dict[str, str] = {}
    for first in range(0, len(holders), TASKS_PER_QUESTION):
        some = holders[first : first + TASKS_PER_QUESTION]
        processes: dict[str, list[int]] = {}
        for one in some:
            if (family := one.metadata.get("worker")) and one.pid is not None:
                processes.setdefault(family, []).append(one.pid)
        ids = sorted({str(one.task_id) for one in some})
        try:
            answers = ask("signs_of_life", seconds=seconds, tasks=ids, processes=processes)
        except WorkersNotAsked as error:
            notice(not_asked % {"reason": error})
            return None
        for node, answer in answers.items():
            if family := answer.get("family"):  # older versions send none
                families[family] = node
                tasks.update(answer["tasks"])
                lives |= {(family, pid): Life.DEAD for pid in answer["gone"]}
                lives |= {(family, pid): Life.STOPPED for pid in answer.get("stopped", ())}
    why = _("its worker did not answer") if families else _("no worker answered")
    return _Workers(tasks, families, lives, why)
