"""Which holders are dead: their process here is gone, or no Celery worker has their task."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from django_redis_lock.records import Holder
from django_redis_lock.text import visible
from django_redis_lock.workers import WorkersNotAsked, ask

REPLY_SECONDS = 2.0
"""How long workers may take to answer."""
TASKS_A_QUESTION = 500


class Verdict(NamedTuple):
    """Whether a holder is dead, and why that is thought."""

    dead: bool
    why: str


class _Workers(NamedTuple):
    """What Celery's workers answered."""

    tasks: set[str]
    """The ids of the tasks that some worker has."""
    hosts: set[str]
    """The hosts of those that answered, as their node names tell them."""


def judge(holders: Iterable[Holder], notice: Callable[[str], None]) -> list[tuple[Holder, Verdict]]:
    """Return the verdict on each holder. In doubt nobody is dead."""
    holders = list(holders)
    here = socket.gethostname()
    to_ask = {
        str(one.task_id) for one in holders if one.task_id and _is_asked_of_workers(one, here)
    }
    workers = _ask_workers(to_ask, notice) if to_ask else None
    return [
        (
            one,
            _of_task(one, workers, here)
            if workers and one.task_id in to_ask
            else _of_process(one, here),
        )
        for one in holders
    ]


def _is_asked_of_workers(holder: Holder, here: str) -> bool:
    """Whether it is a task's lock that this host does not know to be alive."""
    return not is_place(holder) and not (holder.host == here and process_lives(holder.pid))


def is_place(holder: Holder) -> bool:
    """Whether a lock is held for a message in a queue; who sent it need not be there any more."""
    return holder.metadata.get("state") == "queued"


def _of_process(holder: Holder, here: str) -> Verdict:
    if is_place(holder):
        return Verdict(dead=False, why="its message waits in a queue")
    if holder.host is None:
        return Verdict(dead=False, why="a foreign program's")
    if holder.host != here:
        return Verdict(dead=False, why=f"runs on {visible(holder.host)}, not here")
    if process_lives(holder.pid):
        return Verdict(dead=False, why="its process lives")
    return Verdict(dead=True, why=f"process {holder.pid} is gone")


def _of_task(holder: Holder, workers: _Workers, here: str) -> Verdict:
    if is_place(holder):
        return _of_process(holder, here)
    if holder.task_id in workers.tasks:
        return Verdict(dead=False, why="a worker has its task")
    if holder.host == here:
        return _of_process(holder, here)
    if holder.host in workers.hosts:
        return Verdict(dead=True, why=f"the worker on {visible(holder.host)} has no such task")
    return Verdict(dead=True, why=f"no worker on {visible(str(holder.host))} answers")


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


def _ask_workers(task_ids: set[str], notice: Callable[[str], None]) -> _Workers | None:
    """Ask Celery's workers for tasks; return ``None`` where they can't be asked."""
    found = _Workers(set(), set())
    wanted = sorted(task_ids)
    try:
        for first in range(0, len(wanted), TASKS_A_QUESTION):
            ids = wanted[first : first + TASKS_A_QUESTION]
            for node, tasks in ask("query_task", seconds=REPLY_SECONDS, ids=ids).items():
                found.hosts.add(node.partition("@")[2])
                found.tasks.update(tasks if isinstance(tasks, dict) else ())
    except WorkersNotAsked as error:
        notice(f"Celery's workers can't be asked, so their tasks are taken to live: {error}")
        return None
    return found
