"""The scenarios, in the order of the table, and how each is told of."""

from collections.abc import Callable
from dataclasses import dataclass

from . import plays
from .contenders import SHORT
from .plays import Seen
from .stage import Stage
from .tasks import HARD_LIMIT


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong."""

    name: str
    title: str
    how: str
    play: Callable[[Stage], Seen]
    task: str = "work"
    """The kind of task that it needs."""
    quick: bool = False
    """Whether it belongs to the short form."""
    promised: bool = True
    """Whether django-redis-lock promises to come through it without a fault."""


SCENARIOS = (
    Scenario(
        "killed",
        "The child is killed in mid-run",
        "SIGKILL to the worker's child that runs the task; Celery's default acknowledgement.",
        plays.killed,
        quick=True,
    ),
    Scenario(
        "power-cut",
        "The whole worker is killed",
        "SIGKILL to parent and children at once; then a new worker. The lease of "
        "django-redis-lock is its default.",
        plays.power_cut,
    ),
    Scenario(
        "hard-limit",
        "Hard time limit",
        f"`time_limit={HARD_LIMIT}` strikes a task that waits in Python, {plays.LIMITS} times; "
        "calls come in from the beginning on, and a second worker takes its share of them.",
        plays.hard_limit,
        task="limited",
    ),
    Scenario(
        "hard-limit-busy",
        "Hard time limit, busy in C",
        "The same for a task in a long computation of OpenSSL's, which only SIGKILL ends.",
        plays.hard_limit_busy,
        task="busy",
    ),
    Scenario(
        "revoked-running",
        "Revoked while it runs",
        "`control.revoke(id, terminate=True)`.",
        plays.revoked_running,
    ),
    Scenario(
        "revoked-waiting",
        "Revoked while it waits",
        "`control.revoke(id)` of a task sent with a countdown, once a worker has it.",
        plays.revoked_waiting,
    ),
    Scenario(
        "revoked-unseen",
        "Revoked before a worker has it",
        "`control.revoke(id)` of a task whose message is in the queue; then the worker drops it, "
        "and the next calls are made.",
        plays.revoked_unseen,
    ),
    Scenario(
        "unregistered",
        "No worker knows the task",
        "As after it was renamed: the worker drops its message, and the next calls are made.",
        plays.unregistered,
    ),
    Scenario(
        "retry",
        "`self.retry(countdown=0)`",
        f"{plays.CHAINS} tasks, one after the other, each of which asks twice for a retry; only "
        f"{plays.HOPELESS} where all of these are lost.",
        plays.retried,
        task="retry",
        quick=True,
    ),
    Scenario(
        "autoretry",
        "`autoretry_for`",
        "The same for tasks that fail twice.",
        plays.autoretried,
        task="autoretry",
    ),
    Scenario(
        "retry-moved",
        "`self.retry(args=...)` to another key",
        "The next attempt runs under the new key; a call of the new key comes while it runs, and "
        "then one of the old key.",
        plays.moved,
        task="move",
    ),
    Scenario(
        "replace-moved",
        "`self.replace()` by itself with another key",
        "The same by a replacement.",
        plays.replaced,
        task="replace",
    ),
    Scenario(
        "chord",
        "Conflict in a chord, passed over",
        "Two members of one key and one of another, with the quiet form of each guard.",
        plays.in_chord,
        task="quiet",
        quick=True,
    ),
    Scenario(
        "chord-raising",
        "Conflict in a chord, an error",
        "The same with the form that raises.",
        plays.in_chord_raising,
        task="raising",
    ),
    Scenario(
        "other-form",
        "Duplicate in another form of call",
        "`task(7)` runs; then `task(shop_id=7)`, and its default given by position and by keyword; "
        "told apart by all arguments.",
        plays.other_form,
        task="told_by_all",
        quick=True,
    ),
    Scenario(
        "by-name",
        "Duplicate sent by name",
        "`app.send_task(...)`, as beat and other programs do.",
        plays.by_name,
    ),
    Scenario(
        "redelivered",
        "Delivered again while it runs",
        "`acks_late`; the broker gives the message out once more, as after its visibility "
        "timeout; the first delivery ends well.",
        plays.redelivered,
        task="late",
    ),
    Scenario(
        "redelivered-late",
        "Delivered again after its success",
        "The same, but the second delivery comes to a child when the first has stored its success.",
        plays.redelivered_late,
        task="late",
    ),
    Scenario(
        "redelivered-killed",
        "Delivered again, then the first delivery is killed",
        "The same, but the child of the first delivery gets SIGKILL.",
        plays.redelivered_then_killed,
        task="late",
    ),
    Scenario(
        "rejected-on-loss",
        "Killed with `acks_late` and `reject_on_worker_lost`",
        "SIGKILL to the child; Celery delivers the message again, which by itself may take it 5 s.",
        plays.rejected_on_loss,
        task="late_rejected",
    ),
    Scenario(
        "outlasted",
        "Lease shorter than the run",
        f"A lease of {SHORT} s, which django-redis-lock renews, as is its default; a second call "
        "when it would have ended, and further ones when the first run has.",
        plays.outlasted,
        task="short",
    ),
    Scenario(
        "outlasted-fixed",
        "The same, never renewed",
        f"`timeout={SHORT}` for django-redis-lock as well.",
        plays.outlasted_fixed,
        task="short_fixed",
        promised=False,
    ),
)
