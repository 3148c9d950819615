"""Tells which holders are dead: this host or their Celery worker knows that the process is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from django_redis_lock.operators.workers import WorkersNotAsked, ask
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import current_process
from django_redis_lock.support.text import visible

REPLY_SECONDS = 2.0
"""Seconds that workers get to answer."""
TASKS_PER_QUESTION = 500
NOT_ASKED = "Celery's workers can't be asked, so their tasks count as alive: {}"


class Life(StrEnum):
    """Whether a holder, or the message that it stands for, is still there."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Whether a holder is alive, and why. In doubt it is not known."""

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
    gone: set[tuple[str, int]]
    """Their processes that are gone, as (family id, process id)."""
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
    """Whether a task holds it and this host does not know the process to be alive."""
    alive_here = holder.host == here and _is_among_ours(holder) and process_lives(holder.pid)
    return bool(holder.task_id) and not _is_parked(holder) and not alive_here


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
        return Verdict(Life.UNKNOWN, why="its message waits in a queue")
    if _is_parked(holder):
        return Verdict(Life.UNKNOWN, why="held by no process, until its lease ends")
    if holder.host is None:
        return Verdict(Life.UNKNOWN, why="held by another program")
    if holder.host != here or not _is_among_ours(holder):
        host = visible(holder.host)
        why = f"runs on {host}, not here"
        if holder.host == here:
            runs = "runs" if holder.pid_space else "may run"
            why = f"{runs} in another container of {host}"
        return Verdict(Life.UNKNOWN, why)
    if process_lives(holder.pid):
        return Verdict(Life.ALIVE, why="its process lives")
    return Verdict(Life.DEAD, why=f"process {holder.pid} is gone")


def _of_task(holder: Holder, workers: _Workers) -> Verdict | None:
    """Return the workers' verdict; ``None`` if this host may know more."""
    if holder.task_id in workers.tasks:
        return Verdict(Life.ALIVE, why="a worker has its task")
    family = holder.metadata.get("worker", "")
    if node := workers.families.get(family):
        if (family, holder.pid) in workers.gone:
            return Verdict(Life.DEAD, why=f"process {holder.pid} of {visible(node)} is gone")
        return Verdict(Life.ALIVE, why=f"its process lives, says {visible(node)}")
    if holder.host == socket.gethostname():
        return None
    return Verdict(Life.UNKNOWN, why=f"runs on {visible(str(holder.host))}; {workers.why}")


def process_lives(pid: int | None) -> bool:
    """Return whether a process of this host is alive; in doubt it is."""
    if pid is None or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # a system without /proc
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]


def _ask_workers(
    holders: list[Holder], notice: Callable[[str], None], seconds: float, silence: str
) -> _Workers | None:
    """Ask Celery's workers about holders; return ``None`` if they can't be asked."""
    if silence:
        notice(NOT_ASKED.format(silence))
        return None
    tasks: set[str] = set()
    gone: set[tuple[str, int]] = set()
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
            notice(NOT_ASKED.format(error))
            return None
        for node, answer in answers.items():
            if family := answer.get("family"):  # older versions send none
                families[family] = node
                tasks.update(answer["tasks"])
                gone.update((family, pid) for pid in answer["gone"])
    why = "its worker did not answer" if families else "no worker answered"
    return _Workers(tasks, families, gone, why)
