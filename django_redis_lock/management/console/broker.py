"""Finds Celery's messages in the broker's queues and in its workers.

A message may move during the search, so the queues are searched before and after the places that it
may move to. If any place can't be searched completely, nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django_redis_lock.celery.private import (
    redis_binding_prefix,
    redis_queue_keys,
    redis_unacknowledged_key,
)
from django_redis_lock.operators.workers import Replies, WorkersNotAsked, ask
from django_redis_lock.support.text import keep_secrets

PAGE = 1000
"""Messages per read."""
DELAYED_LEVELS = 28
"""Queues in which RabbitMQ delays messages with a countdown, if Celery uses them."""


class MessagesNotKnown(Exception):
    """It is not known where messages are; the text says why."""


def find_messages(app: Any, tasks: Mapping[str, str]) -> dict[str, str]:
    """Return where each message was found, by task id.

    ``tasks`` has the task names by id. Raises ``MessagesNotKnown``.
    """
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            look = _LOOKS.get(connection.transport.driver_type, _refuse)
            return look(app, connection, tasks)
    except MessagesNotKnown:
        raise
    except WorkersNotAsked as error:
        raise MessagesNotKnown(f"the workers can't be asked: {error}") from error
    except Exception as error:  # any error of the transport
        text = keep_secrets(error) or type(error).__name__
        raise MessagesNotKnown(f"the broker can't be asked: {text}") from error


def _in_hand(tasks: Iterable[str]) -> Replies:
    return ask("messages_in_hand", ids=list(tasks))


def _with_workers(answers: Replies) -> dict[str, str]:
    return {
        task_id: f"{node} has its message"
        for node, answer in answers.items()
        for task_id in answer.get("ids", ())
    }


def _queues(app: Any, tasks: Mapping[str, str], answers: Replies) -> list[str]:
    """Return the queues of the settings, the tasks' routes and the workers."""
    routed = {_route(app, name) for name in set(tasks.values())}
    names = {name for answer in answers.values() for name in answer.get("queues", ())}
    return sorted({*app.amqp.queues, *names, *routed} - {""})


def _route(app: Any, name: str) -> str:
    task = app.tasks.get(name)
    given = {"queue": task.queue} if task is not None and getattr(task, "queue", None) else {}
    queue = app.amqp.router.route(given, name, (), {}).get("queue")
    return str(getattr(queue, "name", queue) or "")


# Redis: its queues can be read.


def _look_in_redis(app: Any, connection: Any, tasks: Mapping[str, str]) -> dict[str, str]:
    """Read all queues of the broker, and the unacknowledged messages."""
    channel, wanted = connection.default_channel, set(tasks)
    bound = {queue for exchange in _exchanges(channel) for *_, queue in channel.get_table(exchange)}
    found: dict[str, str] = {}

    def read_queues() -> None:
        for queue in sorted(bound.union(_queues(app, tasks, {}))):
            for text in _messages(channel, queue):
                found.update(
                    dict.fromkeys(wanted & _ids(text), f"its message waits in queue {queue}")
                )

    read_queues()
    for _, text in channel.client.hscan_iter(redis_unacknowledged_key(channel)):
        found.update(
            dict.fromkeys(wanted & _ids(text), "its message was delivered, and not acknowledged")
        )
    read_queues()  # messages may have come back
    return {**found, **_with_workers(_in_hand(tasks))}


def _exchanges(channel: Any) -> Iterator[str]:
    prefix = redis_binding_prefix(channel)
    for key in channel.client.scan_iter(match=f"{prefix}*", count=PAGE):
        name = key.decode() if isinstance(key, bytes) else key
        # Other keys with this prefix are not bindings.
        if channel.client.type(name) in (b"set", "set"):
            yield name.removeprefix(prefix)


def _messages(channel: Any, queue: str) -> Iterator[bytes]:
    """Yield the messages of a queue, of all priorities, the newest first."""
    for key in redis_queue_keys(channel, queue):
        first = 0
        while page := channel.client.lrange(key, first, first + PAGE - 1):
            yield from page
            first += len(page)


def _ids(text: bytes) -> set[str]:
    """Return the ids of a message. Raises ``MessagesNotKnown``."""
    try:
        message = json.loads(text)
        if isinstance(message, list):  # [message, exchange, routing key]
            message = message[0]
        headers, properties = message.get("headers") or {}, message.get("properties") or {}
    except (ValueError, LookupError, AttributeError) as error:
        raise MessagesNotKnown("a message can't be read") from error
    return {str(headers.get("id")), str(properties.get("correlation_id"))}


# RabbitMQ: it reports only the numbers of messages and consumers.


def _look_in_amqp(app: Any, connection: Any, tasks: Mapping[str, str]) -> dict[str, str]:
    """Check that all queues are empty and that the workers of all consumers answer."""
    answers = _in_hand(tasks)
    names = _queues(app, tasks, answers)
    _check_queues(connection, names, answers)
    found = _with_workers(_in_hand(tasks))
    _check_queues(connection, names, answers)  # messages may have come back
    return {**_with_workers(answers), **found}


def _check_queues(connection: Any, names: list[str], answers: Replies) -> None:
    """Raise ``MessagesNotKnown`` unless the queues are empty and all consumers are known."""
    for name in [*names, *(f"celery_delayed_{level}" for level in range(DELAYED_LEVELS))]:
        declared = _declared(connection, name)
        if declared is None:
            continue
        if declared.message_count:
            raise MessagesNotKnown(f"queue {name} is not empty")
        answering = sum(name in answer.get("queues", ()) for answer in answers.values())
        if declared.consumer_count > answering:
            raise MessagesNotKnown(
                f"not all consumers of queue {name} answered: {answering} of "
                f"{declared.consumer_count}"
            )


def _declared(connection: Any, name: str) -> Any:
    """Return the broker's declaration of a queue, ``None`` if it does not exist."""
    with _channel(connection) as channel:
        try:
            return channel.queue_declare(name, passive=True)
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) == "404":
                return None
            raise


@contextmanager
def _channel(connection: Any) -> Iterator[Any]:
    """Yield a new channel, because a failed declaration closes it."""
    channel = connection.channel()
    try:
        yield channel
    finally:
        channel.close()


def _refuse(app: Any, connection: Any, tasks: Mapping[str, str]) -> dict[str, str]:
    kind = connection.transport.driver_type
    raise MessagesNotKnown(f"a broker of kind {kind!r} can't be searched for messages")


_LOOKS = {"redis": _look_in_redis, "amqp": _look_in_amqp}
