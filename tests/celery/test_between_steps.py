"""What fails between two steps of sending a task: no work is lost, and no place is left behind."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.exceptions import Reject
from celery.result import AsyncResult

from django_redis_lock import locks
from django_redis_lock.celery.key_locks import UNSENT_LEASE, TaskLock
from django_redis_lock.protocol import drivers
from django_redis_lock.protocol.calls import Renew
from django_redis_lock.protocol.drivers import carry_out
from example_project.embedded import EmbeddedServer
from tests.celery.consumer import Consumer, held, id_of, unavailable

RETRY = {"run": "retry"}
SENDING: dict[str, dict[str, Any]] = {
    "in the queue": {"scope": "queue"},
    "for the run": {"scope": "queue_and_run"},
    "superseding": {"scope": "queue", "on_conflict": "supersede"},
}
RUNNING: dict[str, dict[str, Any]] = {
    "sent again": {"scope": "queue", "on_conflict": RETRY},
    "the newest, sent again": {"scope": "queue", "on_conflict": {"queue": "supersede", **RETRY}},
    "retried": {"scope": "queue_and_run"},
}
FAILURES = ("killed before", "killed after", "no broker", "no server")

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def site(name: str, server: EmbeddedServer) -> Iterator[Consumer]:
    """A consumer whose broker and locks outlive a process."""
    consumer = Consumer(name, server.url(7))
    yield consumer
    consumer.close()


def renew_nothing(port: Any, step: Any) -> Any:
    return unavailable() if isinstance(step, Renew) else carry_out(port, step)


def failing(site: Consumer, failure: str, step: Callable[[], Any]) -> Any:
    """Have a step fail as, or after, it publishes; return its result or error, if it lived."""
    publish = site.app.amqp.send_task_message

    def die(*args: Any, **kwargs: Any) -> None:
        if failure == "killed after":
            publish(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    def no_broker(*args: Any, **kwargs: Any) -> None:
        if failure == "no broker, no place":
            free_all(site)
        raise ConnectionError("no broker")

    with pytest.MonkeyPatch.context() as patched:

        def lose_server(*args: Any, **kwargs: Any) -> None:
            publish(*args, **kwargs)
            for method in ("take_over", "detach"):
                patched.setattr(TaskLock, method, unavailable)
            patched.setattr(drivers, "carry_out", renew_nothing)

        broken = {"kill": die, "no s": lose_server, "no b": no_broker}[failure[:4]]
        patched.setattr(site.app.amqp, "send_task_message", broken)
        if not failure.startswith("killed"):
            try:
                return step()
            except Exception as error:
                return error
        if (child := os.fork()) == 0:
            site.app._after_fork()
            try:
                step()
            finally:
                traceback.print_exc(file=sys.__stderr__)  # else it would be killed
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return None


def serve(site: Consumer, *first: Any) -> None:
    """Deliver these messages once more, and all that wait."""
    for message in first:
        site.deliver(message, redelivered=True)
    for _ in range(20):
        if (message := site.message()) is None:
            return
        site.deliver(message)
    pytest.fail("more than 20 messages came")


def nothing_is_left(site: Consumer, failure: str) -> bool:
    """Whether all locks are free, or will be soon after one that keeps a process from it."""
    left = list(locks["default"].holders(f"{site.app.main}*"))
    soon = all(one.ttl is not None and one.ttl <= UNSENT_LEASE for one in left)
    return soon if failure.startswith("killed") else not left


def free_all(site: Consumer) -> None:
    for one in locks["default"].holders(f"{site.app.main}*"):
        locks["default"].force_release(one.name)


@pytest.mark.parametrize("failure", [*FAILURES, "no broker, no place"])
@pytest.mark.parametrize("kind", SENDING)
def test_failure_while_a_task_is_sent(site: Consumer, kind: str, failure: str) -> None:
    """What was sent runs, or something newer does, and later calls are not swallowed."""
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)

    task = site.task(work, {"ignore_result": True}, using="default", **SENDING[kind])
    if kind == "superseding":
        task.delay(1)
    result = failing(site, failure, lambda: task.delay(2))
    serve(site)
    sent = failure in ("killed after", "no server")
    assert isinstance(result, AsyncResult) is (failure == "no server")
    assert (str(result) == "no broker") is failure.startswith("no broker")
    assert ran[-1:] == ([2] if sent else [1] if kind == "superseding" else [])
    assert nothing_is_left(site, failure)
    free_all(site)  # as the lease does
    task.delay(3)
    serve(site)
    assert ran[-1] == 3


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", RUNNING)
def test_failure_while_a_message_is_sent_again(site: Consumer, kind: str, failure: str) -> None:
    """The task runs once its message comes, the same or the new one, and leaves nothing."""
    ran: list[Any] = []

    def work(self: Any, number: int) -> None:
        if kind == "retried" and not self.request.retries and failure not in ran:
            ran.append(failure)
            raise self.retry(countdown=0)
        ran.append(number)

    options = {"bind": True, "acks_late": True, "ignore_result": True}
    task = site.task(work, options, using="default", **RUNNING[kind])
    another = None if kind == "retried" else held(task, "another")
    message = site.send(task, 1)
    ended = failing(site, failure, lambda: site.deliver(message))
    if another is not None:
        (reservation,) = locks["default"].holders(f"{site.app.main}~~*")
        assert reservation.task_id == id_of(message)
        another.release()
    comes = ended is None or (isinstance(ended, Reject) and ended.requeue)
    serve(site, *[message] * comes)
    assert 1 in ran or (kind == "retried" and isinstance(ended, Reject))  # by Celery itself
    assert nothing_is_left(site, failure)
    task.delay(2)
    serve(site)
    assert ran[-1] == 2
