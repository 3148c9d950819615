"""Tasks whose key or options have changed by the time that they run.

The app ``before`` has the tasks as they were, and sends; the worker has them as they are now. The
names are the same.
"""

from __future__ import annotations

from typing import Any

from celery import Task
from django.db import transaction

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import QUEUE, QUEUE_AND_RUN, RUN, SCOPES, WAITING, app, new_app
from tests.apps.celery.scopes import BOUND, broken_key, come_much_later
from tests.tools.celery_worker import counted, tell_and_wait

before = new_app("before")

KINDS: dict[str, dict[str, Any]] = {
    "run": {"scope": RUN},
    "queue": {"scope": QUEUE},
    "whole": {"scope": QUEUE_AND_RUN},
    "newest": {"scope": QUEUE, "on_conflict": "supersede"},
    "two": {"scope": QUEUE_AND_RUN, "concurrency": 2},
    "two-queue": {"scope": QUEUE, "concurrency": 2},
    "other-key": {"scope": QUEUE_AND_RUN, "key": "other:{what}"},
    "other-place": {"scope": QUEUE, "key": "other:{what}"},
    "other-alias": {"scope": QUEUE_AND_RUN, "using": "url"},
}
"""Ways to guard a task, by name."""
CHANGES = [(old, new) for old in KINDS for new in KINDS]


def changed(old: str, new: str) -> str:
    """Return the name of the task that was guarded in one way, and now is in another."""
    return f"changed-{old}-{new}"


def run(what: str) -> str:
    """Run until the test says go."""
    with counted(what):
        return tell_and_wait(what)


def _guarded(kind: str) -> Any:
    return single_instance_task(**{"key": "changed:{what}", **KINDS[kind]})(run)


for _old, _new in CHANGES:
    before.task(shared=False, name=changed(_old, _new))(_guarded(_old))
    app.task(shared=False, name=changed(_old, _new))(_guarded(_new))

old_name = before.task(shared=False, name="old-name")(
    single_instance_task(scope=QUEUE_AND_RUN)(run)
)
new_name = app.task(shared=False, name="new-name")(single_instance_task(scope=QUEUE_AND_RUN)(run))
app.tasks["old-name"] = app.tasks["new-name"]


for _scope in WAITING:
    before.task(shared=False, name=f"broken-{_scope}")(
        single_instance_task(scope=_scope, key="{what}")(run)
    )
    app.task(shared=False, name=f"broken-{_scope}")(
        single_instance_task(scope=_scope, key=broken_key)(run)
    )


def move(self: Task, what: str, to: str = "", how: str = "") -> str:
    """Go on under another key, or run until the test says go."""
    with counted(what):
        if to and how == "retry":
            raise self.retry(args=(to,), kwargs={}, countdown=0)
        if to and how == "replace":
            raise self.replace(self.s(to))
        if to:
            raise self.replace(handed[how].s(what))
        return tell_and_wait(what)


moving = {
    scope: app.task(shared=False, name=f"moving-{scope}", **BOUND)(
        single_instance_task(scope=scope, key="moving:{what}")(move)
    )
    for scope in SCOPES
}


def take_over(what: str) -> str:
    """Replace another task of the same key."""
    with counted(what):
        return "replaced"


handed = {
    scope: app.task(shared=False, name=f"handed-{scope}")(
        single_instance_task(scope=scope, key="moving:{what}")(take_over)
    )
    for scope in SCOPES
}


later = app.task(shared=False, name="moves-later", **BOUND)(
    single_instance_task(scope=QUEUE_AND_RUN, key="later:{what}")(come_much_later)
)
plain = {
    scope: app.task(shared=False, name=f"moves-plain-{scope}")(
        single_instance_task(scope=scope, key="plain:{what}")(run)
    )
    for scope in SCOPES
}


class PutOff(Task):
    """A base class that sends its tasks when the transaction is committed."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> None:
        """Send later."""
        transaction.on_commit(lambda: super(PutOff, self).apply_async(*args, **options))


put_off = {
    scope: app.task(shared=False, name=f"moves-put-off-{scope}", base=PutOff)(
        single_instance_task(scope=scope, key="put-off:{what}")(run)
    )
    for scope in SCOPES
}


class PutOffItself(PutOff):
    """A class-based task that overrides its sending once more."""

    name = "moves-put-off-itself"

    def apply_async(self, *args: Any, **options: Any) -> None:
        """Send later."""
        super().apply_async(*args, **options)

    def run(self, what: str) -> str:
        """Run."""
        return run(what)


put_off["itself"] = app.register_task(
    single_instance_task(scope=QUEUE_AND_RUN, key="put-off:{what}")(PutOffItself)()
)
raising = app.task(shared=False, name="moves-raising")(
    single_instance_task(key="plain:{what}", on_conflict="raise")(run)
)
