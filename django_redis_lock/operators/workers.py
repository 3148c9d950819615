"""Ask Celery's workers about the tasks they have, for the command and the admin page.

A worker that does not answer proves nothing: what can't be asked is unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from django_redis_lock.support.text import keep_secrets

REPLY_SECONDS = 1.0
"""How long to wait for the next answer of a worker."""
CONNECT_SECONDS = 3.0
"""How long the broker may take in addition."""

Replies = dict[str, Any]
"""The answers of workers, by node name."""


class WorkersNotAsked(Exception):
    """Celery's workers could not be asked; the message says why, in the current language."""


def celery_app() -> Any:
    """Return this project's Celery app; ``None`` without Celery or a broker."""
    try:
        from celery.app import app_or_default
    except ImportError:
        return None
    app = app_or_default()
    return app if app.conf.broker_url or app.conf.broker_write_url else None


def ask(command: str, *, seconds: float = REPLY_SECONDS, **arguments: Any) -> Replies:
    """Return the workers' answers to a remote control command.

    ``seconds``: how long to wait for each answer. The call returns within a few seconds more,
    whatever the broker does. Raises ``WorkersNotAsked``.
    """
    app = celery_app()
    if app is None:
        raise WorkersNotAsked(_("there is no Celery app with a broker"))
    replies: Replies = {}
    failed: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            # Without limits a broker that is down would be retried forever.
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                answers = app.control.broadcast(
                    command,
                    arguments=arguments,
                    connection=connection,
                    reply=True,
                    timeout=seconds,
                )
                for answer in answers or ():
                    replies.update(answer)
        except Exception as error:  # of any broker's transport
            failed.append(error)
        finally:
            ended.set()

    # A broker that does not answer blocks only this thread.
    threading.Thread(target=work, name="django-redis-lock-workers", daemon=True).start()
    if not ended.wait(CONNECT_SECONDS + 2 * seconds):
        raise WorkersNotAsked(_("the broker does not answer"))
    if failed:
        text = keep_secrets(failed[0]) or type(failed[0]).__name__
        raise WorkersNotAsked(text) from failed[0]
    return replies


@dataclass(frozen=True)
class TaskLine:
    """A task that a worker has in hand, and the state of its lock."""

    worker: str
    """The worker's node name."""
    using: str
    """The alias of LOCKS that has the lock."""
    task: str
    """The task's name."""
    id: str
    """The task's id."""
    state: str
    """``runs``, ``waits``, ``comes again``, ``scheduled``, ``reserved`` or ``active``."""
    behind: str | None
    """The holder that it waits for, if any."""
    place: str | None
    """Whether it still has the place taken when it was sent: ``held``, ``lost``, or ``None`` if it
    needs none."""
    eta: str | None
    """When it is due, in ISO 8601."""
    attempts: int
    """How often it went back to the queue because another instance was running."""


@dataclass(frozen=True)
class InHand:
    """The tasks that workers have in hand for one lock."""

    tasks: list[TaskLine] = field(default_factory=list)
    workers: int = 0
    """How many workers answered."""
    unclear: int = 0
    """How many tasks may or may not need the lock."""
    problem: str = ""
    """Why the workers could not be asked."""

    @property
    def is_known(self) -> bool:
        """Whether any worker answered."""
        return self.workers > 0

    @property
    def silence(self) -> str:
        """Why nothing is known; empty if a worker answered."""
        return "" if self.is_known else self.problem or _("no worker answered")

    def of(self, using: str) -> list[TaskLine]:
        """Return the tasks whose lock is on one alias of LOCKS."""
        return [line for line in self.tasks if line.using == using]


def in_hand(name: str, seconds: float = REPLY_SECONDS) -> InHand | None:
    """Return the tasks that workers have in hand for the locks of a name, on any alias.

    Returns ``None`` without Celery.
    """
    if celery_app() is None:
        return None
    try:
        replies = ask("guarded_tasks", seconds=seconds, lock=name)
    except WorkersNotAsked as error:
        return InHand(problem=str(error))
    answers = {node: answer for node, answer in replies.items() if "tasks" in answer}
    lines = sorted(_read(answers), key=lambda line: (_ORDER.get(line.state, 9), line.eta or ""))
    unclear = sum(
        answer.get("keys_not_known", 0) + answer.get("left_out", 0) for answer in answers.values()
    )
    return InHand(lines, len(answers), unclear)


_ORDER = {"runs": 0, "active": 1, "waits": 2, "comes again": 3}


def _read(answers: Replies) -> Iterator[TaskLine]:
    for node, answer in answers.items():
        for line in answer["tasks"]:
            yield TaskLine(
                node,
                str(line.get("using")),
                str(line.get("task")),
                str(line.get("id")),
                str(line.get("state")),
                line.get("behind"),
                line.get("place"),
                line.get("eta"),
                int(line.get("attempts") or 0),
            )
