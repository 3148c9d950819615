"""The scenarios in the order of the table, and how the documentation describes them."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.celery_guards import plays
from benchmarks.celery_guards.contenders import SHORT, SOON
from benchmarks.celery_guards.plays import Seen
from benchmarks.celery_guards.stage import PROBE_EVERY, Stage
from benchmarks.celery_guards.tasks import HARD_LIMIT


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    how: str
    play: Callable[[Stage, str], Seen]
    task: str = "work"
    """The name of the task that it needs."""
    quick: bool = False
    """Whether the short form includes it."""
    promised: bool = True
    """Whether django-redis-lock promises that it has no fault here."""
    seconds: float = 8.0
    """About how long it takes."""


SCENARIOS = (
    Scenario(
        "killed",
        "The child is killed during the run",
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
        seconds=50,
    ),
    Scenario(
        "hard-limit",
        "Hard time limit",
        f"A task that waits in Python exceeds `time_limit={HARD_LIMIT}`, {plays.LIMITS} times; "
        "calls come from the start, and a second worker takes its share of them.",
        plays.hard_limit,
        task="limited",
        seconds=20,
    ),
    Scenario(
        "hard-limit-busy",
        "Hard time limit, busy in C",
        "The same for a task in a long computation of OpenSSL, which only SIGKILL ends.",
        plays.hard_limit,
        task="busy",
        seconds=20,
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
        f"{plays.HOPELESS} if all of these are lost.",
        plays.retried,
        task="retry",
        quick=True,
        seconds=12,
    ),
    Scenario(
        "autoretry",
        "`autoretry_for`",
        "The same for tasks that fail twice.",
        plays.retried,
        task="autoretry",
        seconds=12,
    ),
    Scenario(
        "retry-moved",
        "`self.retry(args=...)` to another key",
        "The next attempt runs under the new key; while it runs, the new key is called, and then "
        "the old one.",
        plays.moved,
        task="move",
    ),
    Scenario(
        "replace-moved",
        "`self.replace()` by itself with another key",
        "The same by a replacement.",
        plays.moved,
        task="replace",
    ),
    Scenario(
        "chord",
        "Conflict in a chord, ignored",
        "Two members with one key and one with another, with the quiet option of each guard.",
        plays.in_chord,
        task="quiet",
        quick=True,
    ),
    Scenario(
        "chord-raising",
        "Conflict in a chord, an error",
        "The same with the option that raises.",
        plays.in_chord,
        task="raising",
    ),
    Scenario(
        "other-form",
        "Duplicate in another form of call",
        "`task(7)` runs; then `task(shop_id=7)`, and its default given by position and by keyword; "
        "the key consists of all arguments.",
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
        "Redelivered while it runs",
        "`acks_late`; the broker delivers the message once more, as after its visibility timeout; "
        "the first delivery succeeds.",
        plays.redelivered,
        task="late",
    ),
    Scenario(
        "redelivered-late",
        "Redelivered after its success",
        "The same, but a child gets the second delivery when the first has stored its success.",
        plays.redelivered_late,
        task="late",
    ),
    Scenario(
        "redelivered-killed",
        "Redelivered, then the first delivery is killed",
        "The same, but the child of the first delivery gets SIGKILL.",
        plays.redelivered_then_killed,
        task="late",
    ),
    Scenario(
        "rejected-on-loss",
        "Killed with `acks_late` and `reject_on_worker_lost`",
        "SIGKILL to the child; Celery redelivers the message, which alone may take it 5 s.",
        plays.rejected_on_loss,
        task="late_rejected",
    ),
    Scenario(
        "outlasted",
        "Lease shorter than the run",
        f"A lease of {SHORT} s, which django-redis-lock renews by default; a second call when it "
        "would have ended, and further ones when the first run has.",
        plays.outlasted,
        task="short",
    ),
    Scenario(
        "outlasted-fixed",
        "The same, never renewed",
        f"`timeout={SHORT}` for django-redis-lock as well.",
        plays.outlasted,
        task="short_fixed",
        promised=False,
    ),
    Scenario(
        "waiting-for-a-message",
        "Duplicates wait in the worker, and the retry they wait for is in the queue",
        f"{plays.PROCESSES} duplicates sent by name fill the worker's processes.",
        plays.waiting_for_a_message,
        task="patient",
    ),
    Scenario(
        "own-id",
        "A second message with the running task's id, then the run is killed",
        '`apply_async(task_id="own")` twice, with `acks_late` and `reject_on_worker_lost`.',
        plays.own_id,
        task="late_rejected",
    ),
    Scenario(
        "own-id-again",
        "The id of a task that has succeeded before",
        "The new message has a countdown, and its worker is restarted meanwhile.",
        plays.own_id_again,
        seconds=15,
    ),
    Scenario(
        "half-seconds",
        f"A duplicate comes again every {SOON} s, on a quorum queue",
        "RabbitMQ, whose delayed delivery knows whole seconds.",
        plays.half_seconds,
        task="again",
        seconds=40,
    ),
    Scenario(
        "newest-first",
        "The newest replaces the one in the queue, faster than the queue delivers",
        f"A call every {PROBE_EVERY} s, each with a countdown of 1 s, until one runs: at most for "
        f"{plays.REPLACED_FOR:g} s.",
        plays.newest_first,
        task="newest",
        seconds=25,
    ),
    Scenario(
        "own-names",
        "Keys that look like the guard's own names",
        "Calls with the keys `7:queued`, `7#1` and the like, and with `7` beside them.",
        plays.like_its_own_names,
        task="named",
        seconds=12,
    ),
    Scenario(
        "other-in-the-worker",
        "Arguments that the worker gets in another form",
        "A tuple is part of the key; the serializer is JSON.",
        plays.other_in_the_worker,
        task="items",
    ),
    Scenario(
        "shared-key",
        "Two tasks with one key in the queue",
        "Both are sent before either runs.",
        plays.shared_key,
        task="shared",
    ),
)
