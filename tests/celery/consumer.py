"""A consumer that runs tasks in the test's process, with the code that a worker runs them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import Celery
from celery.signals import task_received
from celery.worker.request import Request
from django.dispatch import Signal

from django_redis_lock.celery import (
    single_instance_task,
    task_lock_lost,
    task_parked,
    task_skipped,
    task_taken_over,
    task_waiting,
)
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.key_locks import GuardedCall, MessageHeader, TaskLock
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.tasks.conflicts import logger

SIGNALS = {
    "skipped": task_skipped,
    "waiting": task_waiting,
    "parked": task_parked,
    "taken over": task_taken_over,
    "lost": task_lock_lost,
}


def body(*args: Any, **kwargs: Any) -> str:
    return "ran"


def unavailable(*_: Any, **__: Any) -> Any:
    raise LockUnavailable("no server")


def no_broker(*_: Any, **__: Any) -> Any:
    raise ConnectionError("no broker")


class Consumer:
    """An app with a broker and results in memory, whose messages the test delivers one by one."""

    def __init__(self, name: str, broker: str = "memory://localhost") -> None:
        self.app = Celery(name, broker=broker, backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_default_queue=name, result_extended=True)
        self.ended: list[str] = []
        """How each delivery ended for the broker: ``ack`` or ``reject``."""
        self.notified: list[tuple[str, dict[str, Any]]] = []
        """The signals of the guard, by the names of ``SIGNALS``."""
        self.when: dict[str, Callable[[], object]] = {}
        """What to do at the next signal of a kind."""
        self._receivers: list[tuple[Signal, Callable[..., None]]] = []
        for kind, signal in SIGNALS.items():
            self._listen(kind, signal)

    def _listen(self, kind: str, signal: Signal) -> None:
        def receive(sender: Any, signal: Signal, **news: Any) -> None:
            if sender.app is self.app:
                self.notified.append((kind, news))
                self.when.pop(kind, lambda: None)()

        signal.connect(receive, weak=False)
        self._receivers.append((signal, receive))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.notified]

    def close(self) -> None:
        for signal, receive in self._receivers:
            signal.disconnect(receive)
        with self.app.connection_for_write() as connection:
            connection.default_channel.queue_delete(self.app.conf.task_default_queue)
        self.app.close()

    def task(
        self, function: Callable[..., Any], options: dict[str, Any] | None = None, **guard: Any
    ) -> Any:
        """Return a guarded task of this app; ``options`` are Celery's."""
        given = {"using": "locmem", "key": self.app.main, **guard}
        name = f"{self.app.main}.{function.__name__}"
        marked = single_instance_task(**given)(function)
        return self.app.task(name=name, shared=False, **(options or {}))(marked)

    def message(self) -> Any:
        """Take the next message; ``None`` if there is none."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            queue = self.app.amqp.queues[self.app.conf.task_default_queue](channel)
            queue.declare()
            return queue.get(no_ack=True, accept=self.app.conf.accept_content)

    def deliver(self, message: Any = None, redelivered: bool = False) -> Any:
        """Run the task of a message, by default of the next one; return its result or exception."""
        message = message or self.message()
        message.delivery_info["redelivered"] = redelivered
        request = Request(
            message,
            app=self.app,
            hostname="test",
            on_ack=lambda *_: self.ended.append("ack"),
            on_reject=lambda *_: self.ended.append("reject"),
        )
        task_received.send(sender=None, request=request)
        result = request.execute()
        error = result.exception if isinstance(result, ExceptionInfo) else result
        return error.exc if isinstance(error, ExceptionWithTraceback) else error

    def serve(self) -> list[Any]:
        """Deliver what waits, and what comes meanwhile, at most 20 messages; return the results."""
        results = []
        while (message := self.message()) is not None:
            results.append(self.deliver(message))
            assert len(results) < 20, "messages come again and again"
        return results

    def send(self, task: Any, *args: Any, **options: Any) -> Any:
        task.apply_async(args, **options)
        return self.message()


def key_locks(task: Any, task_id: str | None = None) -> GuardedCall:
    """Return the locks of a task of a consumer; its key is the name of the app."""
    call = GuardedCall(getattr(task, GUARD).options, task, task_id, key=task.app.main)
    if call.options.concurrency != 1:
        call.sharing = getattr(task, GUARD).sharing(task, (), {})
    return call


def held(task: Any, task_id: str | None = None, **metadata: str) -> TaskLock:
    """Let another delivery or instance of a task take its lock."""
    call = key_locks(task, task_id)
    lock = call.handle(call.name, 60, **metadata)
    lock.sharing = call.sharing
    assert lock.acquire(blocking=False)
    return lock


def is_free(task: Any) -> bool:
    return not key_locks(task).holders()


def id_of(message: Any) -> str:
    return str(message.headers["id"])


def header_of(message: Any) -> MessageHeader:
    header = MessageHeader.of(message.headers, id_of(message))
    assert header is not None
    return header


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [item.getMessage() for item in log.records if item.name == logger.name]
