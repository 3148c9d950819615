"""Ask Celery's workers, from a process that is none, where Celery is used at all.

The command and the admin page share this. What can't be asked is not known: silence is no answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_redis_lock.support.text import keep_secrets

REPLY_SECONDS = 1.0
"""How long one waits for workers to answer, after the last that did."""
CONNECT_SECONDS = 3.0
"""How long the broker may take besides."""

Replies = dict[str, Any]
"""What workers answered, by their node names."""


class WorkersNotAsked(Exception):
    """Celery's workers could not be asked; the text says why."""


def celery_app() -> Any:
    """Return the Celery app of this project, ``None`` where there is none with a broker."""
    try:
        from celery import current_app
    except ImportError:
        return None
    app = current_app._get_current_object()
    return app if app.conf.broker_url or app.conf.broker_write_url else None


def ask(command: str, *, seconds: float = REPLY_SECONDS, **arguments: Any) -> Replies:
    """Return what the workers answer to a command of remote control.

    Takes that many ``seconds`` and no more than a few, whatever the broker does. Raises
    ``WorkersNotAsked``.
    """
    app = celery_app()
    if app is None:
        raise WorkersNotAsked("there is no Celery app with a broker")
    replies: Replies = {}
    failed: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            # A broker that is down would be tried for ever.
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                for answer in _broadcast(app, connection, command, seconds, arguments):
                    replies.update(answer)
        except Exception as error:  # whatever the transport of the broker raises
            failed.append(error)
        finally:
            ended.set()

    # A broker that says nothing is waited for in vain by a thread alone.
    threading.Thread(target=work, name="django-redis-lock-workers", daemon=True).start()
    if not ended.wait(CONNECT_SECONDS + 2 * seconds):
        raise WorkersNotAsked("the broker does not answer")
    if failed:
        text = keep_secrets(failed[0]) or type(failed[0]).__name__
        raise WorkersNotAsked(text) from failed[0]
    return replies


def _broadcast(
    app: Any, connection: Any, command: str, seconds: float, arguments: Mapping[str, Any]
) -> list[Replies]:
    return (
        app.control.broadcast(
            command, arguments=arguments, connection=connection, reply=True, timeout=seconds
        )
        or []
    )


@dataclass(frozen=True)
class TaskLine:
    """A task that a worker has in hand, and how it stands with its lock."""

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
    """Who else has the lock, ``None`` for nobody."""
    place: str | None
    """Whether it has the place taken when it was sent: ``held``, ``lost``, ``None`` if it has no
    use for one."""
    eta: str | None
    """When it is due, in ISO 8601."""
    attempts: int
    """How often it went back because another instance was running."""


@dataclass(frozen=True)
class InHand:
    """What workers have in hand for one lock."""

    tasks: list[TaskLine] = field(default_factory=list)
    workers: int = 0
    """How many workers answered."""
    unclear: int = 0
    """Tasks of which it is not known whether they need the lock."""
    problem: str = ""
    """Why the workers could not be asked."""

    @property
    def is_known(self) -> bool:
        """Whether any worker answered."""
        return self.workers > 0

    @property
    def silence(self) -> str:
        """Why nothing is known; empty where a worker answered."""
        return "" if self.is_known else self.problem or "no worker answered"

    def of(self, using: str) -> list[TaskLine]:
        """Return the tasks whose lock an alias of LOCKS has."""
        return [line for line in self.tasks if line.using == using]


def in_hand(name: str, seconds: float = REPLY_SECONDS) -> InHand | None:
    """Return what workers have in hand for the locks of a name, of whatever alias.

    ``None`` where there is no Celery.
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
