"""Which holders are dead: their process is gone, as this host or its own Celery worker knows."""

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
"""How long workers may take to answer."""
TASKS_A_QUESTION = 500
NOT_ASKED = "Celery's workers can't be asked, so their tasks are taken to live: {}"


class Life(StrEnum):
    """Whether a holder, or the message that it stands for, is still there."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Whether a holder lives, and why that is thought. In doubt it is not known."""

    life: Life
    why: str

    @property
    def dead(self) -> bool:
        """Whether it is known to be dead."""
        return self.life is Life.DEAD


class _Workers(NamedTuple):
    """What Celery's workers answered."""

    tasks: set[str]
    """The ids of the tasks that some worker has."""
    families: dict[str, str]
    """The node names of those that answered, by what they share with their children alone."""
    gone: set[tuple[str, int]]
    """The processes of theirs that are no more: whose, and their numbers."""
    why: str
    """Why those that did not answer are not known."""


def judge(
    holders: Iterable[Holder],
    notice: Callable[[str], None],
    seconds: float = REPLY_SECONDS,
    silence: str = "",
) -> list[tuple[Holder, Verdict]]:
    """Return the verdict on each holder. In doubt nobody is dead.

    Dead is who is known to have no process any more: to this host, or to the worker that began it.
    Workers may take that many ``seconds`` to answer. With ``silence``, which says why they gave no
    answer a moment ago, they are not asked again.
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
    """Whether it is a task's lock that this host does not know to be alive."""
    alive_here = holder.host == here and _is_among_ours(holder) and process_lives(holder.pid)
    return bool(holder.task_id) and not _is_parked(holder) and not alive_here


def _is_among_ours(holder: Holder) -> bool:
    """Whether its process id is known to be counted as ours are.

    A record of an older version does not tell. On a system where nobody can know, the host's name
    has to do.
    """
    return (holder.pid_space or "") == current_process().pid_space


def is_place(holder: Holder) -> bool:
    """Whether a lock is held for a message in a queue; who sent it need not be there any more."""
    return holder.metadata.get("state") == "queued"


def _is_parked(holder: Holder) -> bool:
    """Whether no process has it: it is held for a message, detached, or rests after a run."""
    return bool(holder.metadata.get("state"))


def _of_process(holder: Holder, here: str) -> Verdict:
    if is_place(holder):
        return Verdict(Life.UNKNOWN, why="its message waits in a queue")
    if _is_parked(holder):
        return Verdict(Life.UNKNOWN, why="held by no process, until its lease ends")
    if holder.host is None:
        return Verdict(Life.UNKNOWN, why="a foreign program's")
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
    """Return what the workers know of a holder; ``None`` where its host may know more."""
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
    """Return whether a process of this host lives; one that can't be told of does."""
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
    """Ask Celery's workers for holders; return ``None`` where they can't be asked."""
    if silence:
        notice(NOT_ASKED.format(silence))
        return None
    tasks: set[str] = set()
    gone: set[tuple[str, int]] = set()
    families: dict[str, str] = {}
    for first in range(0, len(holders), TASKS_A_QUESTION):
        some = holders[first : first + TASKS_A_QUESTION]
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
            if family := answer.get("family"):  # one of an older version has none
                families[family] = node
                tasks.update(answer["tasks"])
                gone.update((family, pid) for pid in answer["gone"])
    why = "its worker did not answer" if families else "no worker answered"
    return _Workers(tasks, families, gone, why)
