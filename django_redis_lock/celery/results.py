"""What is stored of a task's result."""

from __future__ import annotations

from typing import Any


def stored_state(task: Any, task_id: str | None) -> str | None:
    """Return the state that is stored for a task's id, ``None`` where none can be known.

    It is ``PENDING`` for an id of which nothing is stored.
    """
    if task.ignore_result or task_id is None:
        return None
    try:
        return str(task.AsyncResult(task_id).state)
    except Exception:  # there is no result backend, or it can't be reached
        return None
