"""Tasks that wait without a worker: their messages are parked in a backlog of their lock.

Those that got the lock come into the outbox of the broker, from which workers publish them.
"Parked messages" in ``docs/explanation/how-tasks-are-guarded.md`` explains it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signing import BadSignature, Signer
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps, loads

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery import key_locks, private
from django_redis_lock.celery.key_locks import FAMILY, QUEUED, MessageHeader
from django_redis_lock.celery.options import GUARD
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import ask, withdrawal
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import Sharing
from django_redis_lock.support.process import forget_after_fork, retain_inherited
from django_redis_lock.support.text import escape_unprintable
from django_redis_lock.tasks.conflicts import logger, parked, task_parked
from django_redis_lock.transport import parking as calls

if TYPE_CHECKING:
    from django_redis_lock.celery.run import Run

PARKED = "PARKED"
"""State of a parked task; its result is a dict of ``key``, and ``position`` while it waits."""
AT_ONCE = 20  # how many messages are published in one go, or functions asked for limits
CONFIRM_WITHIN = 4.0  # seconds that a broker has to confirm a message, twice
RETURNED_AGAIN = 60.0  # seconds after which a message is tried again that the broker has returned
UNREAD_KEEPS_LOCK = 10.0  # seconds for which an unreadable message has its lock: others may read it
UNREAD_ASIDE = 3600.0  # seconds after which it is put aside
OLD = 60.0  # seconds after which the result of a reservation's task is checked

_SALT = "django_redis_lock.parked"
_SIGNED = re.compile(r".+:[\w-]{20,}", re.DOTALL)


class Unreadable(Exception):
    """A message can't be read by this worker; others may."""


class Poison(Unreadable):
    """A message can't be read by any worker."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def outbox_of(app: Any) -> str:
    """Return the id of the outbox for the broker of an app, which is the same for all its users."""
    url = app.connection_for_write().as_uri()  # without the password
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix", "")
    return digest(f"{url} {prefix}")


def sealed(message: dict[str, Any]) -> str:
    """Return a message as a signed text. Raises ``ImproperlyConfigured`` without ``SECRET_KEY``."""
    return Signer(salt=_SALT).sign(dumps(message))


def unsealed(text: bytes, name: str, token: str) -> dict[str, Any]:
    """Return the message that waits for a lock with a token. Raises ``Unreadable``."""
    try:
        signed = text.decode()
        if not _SIGNED.fullmatch(signed):
            raise Poison("it is not a signed text")
        message = loads(Signer(salt=_SALT).unsign(signed))
    except BadSignature:
        raise Unreadable("it was signed with another SECRET_KEY, or changed") from None
    except ValueError as error:
        raise Poison(f"it is not JSON: {error}") from None
    known = isinstance(message, dict) and (message.get("lock"), message.get("token"))
    if known != (name, token):
        raise Poison("it belongs to another lock or token")
    return dict(message)


def limit_of(sharing: Sharing) -> str:
    return str(sharing.limit) if sharing.shared else calls.EXCLUSIVE


_began = [monotonic()]  # of this worker


def worker_began() -> None:
    _began[0] = monotonic()


def worker() -> str:
    """Return how many milliseconds ago this worker began, and its id, as limits are noted."""
    return f"{(monotonic() - _began[0]) * 1000:.0f} {FAMILY}"


def park(run: Run, holder: Holder | None, body: private.Body | None = None) -> bool:
    """Park the message of a run. Returns False if too many wait, or the lock is reserved for it.

    ``body``: that of the message as it came, if it is known. Raises ``LockUnavailable``,
    ``ImproperlyConfigured`` without a ``SECRET_KEY``, and ``InvalidLockBackend``.
    """
    backend, options = run.backend, run.options
    space = "(a test needs the lock space 'settings')"
    backend.require(backend.runs_scripts, f"Task {run.task.name} can't be parked {space}")
    _store_state(run, holder)  # first, because the task may run at once then
    request, header = _reserved(run)
    unparked, outbox = replace(header, parked=run.header.parked), outbox_of(run.task.app)
    call = calls.Park(
        request,
        f"@{outbox}",
        message=_message_of(run, header, request.token, body),
        turn=run.turn,
        limit=limit_of(run.sharing),
        worker=worker(),
        instead_of=_superseded(run),
    )
    try:
        answer = backend.run(ask(call))
    except LockUnavailable:
        run.reservation = unparked  # in case it has it nevertheless
        with contextlib.suppress(LockError):  # the task fails now, and must not run later
            backend.run(ask(calls.EndParking(outbox, run.name, token=request.token, turn=run.turn)))
            backend.run(ask(withdrawal(request)))
        raise
    if run.header.lock not in run.reservations:
        run.try_to_give_up_reservation()  # of another key, before a deploy
    if call.lease(answer) is not None:
        run.reservation = unparked
        return False
    if answer[3] % 3 == 0:
        run.policy = options.beyond
        return False
    parked[run.task.name] += 1
    run.conflict(holder).notify(task_parked, "was parked: lock %r is %s")
    return True


def _store_state(run: Run, holder: Holder | None) -> None:
    if not (run.task.ignore_result or run.request.ignore_result):
        with contextlib.suppress(Exception):  # of any result backend
            position = 1 + (holder.waiters or 0 if holder else 0)
            meta = {"key": run.key, "position": position}
            run.task.backend.store_result(run.task_id, meta, PARKED, request=run.request)


def _reserved(run: Run) -> tuple[Request, MessageHeader]:
    """Return the request for the lock, as a reservation for the message, and its header."""
    old, lock = run.header, run.handle(run.name, run.options.queue_timeout, state=QUEUED)
    # A token, as ``parked.lua`` describes it, that is the same for each delivery:
    attempt = f"{run.task_id} {old.sent!r} {run.retries} {old.attempts} {old.parked}"
    lock.token = digest(run.task_id or "") + digest(attempt) + digest(run.task.name)
    lock.sharing = run.sharing._replace(max_waiters=run.options.queue_limit)
    request = lock.make_request(run.backend)
    queued = [old.lock, old.ticket, old.using] if old.lock in run.reservations else None
    header = replace(run.header_to_send(), queued=queued, parked=old.parked + 1)
    return request, header.naming(lock)


def _superseded(run: Run) -> str:
    """Return the digest of the id of a parked task whose reservation newer arguments have."""
    if run.options.on_queue_conflict == "supersede":
        newest = {one.task_id for one in run.holders(run.reservations)}
        for one in run.backend.waiting(run.name):
            if one.parked and one.task_name == run.task.name and one.task_id not in newest:
                return digest(one.task_id or "")
    return ""


def _message_of(run: Run, header: MessageHeader, token: str, body: private.Body | None) -> str:
    """Return a message as it came, but with this header, as a signed text."""
    request = run.request
    headers = {**private.headers_of(request), **header.as_headers()}
    content, content_type, encoding = body or private.encode_body(request)
    delivery = request.delivery_info or {}
    options = {
        **private.properties_of(request),
        "exchange": delivery.get("exchange") or "",
        "routing_key": delivery.get("routing_key"),
        "headers": headers,
        "compression": headers.pop("compression", None),
        "content_type": content_type,
        "content_encoding": encoding,
    }
    known = {"lock": run.name, "token": token, "id": run.task_id}
    return sealed({**known, "body": content, "options": options})


class Publisher:
    """Publishes messages of an app, over a connection of its own on which brokers confirm them.

    Its methods that take a ``backend`` raise ``LockUnavailable``.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.outbox = outbox_of(app)
        self.unreachable = ""  # why the broker could not be reached at the last attempt
        self.published = 0  # messages, by the last call
        self.put_off: list[tuple[str, str]] = []  # the locks of those put off or aside, and why
        self._producer: Any = None
        self._owners: dict[str, Any] = {}
        self._asked: dict[str, float] = {}
        self._failure, self._no_results = "", 0.0
        forget_after_fork(self)

    def after_fork(self) -> None:
        retain_inherited(self._producer)
        self._producer = None

    def close(self) -> None:
        producer, self._producer = self._producer, None
        with contextlib.suppress(Exception):  # of any broker, or None
            producer.connection.collect()

    def publish(self, backend: BaseLockBackend, skip: int = -1) -> tuple[float, list[Any]]:
        """Hand locks off to messages that are next, and publish some that have them.

        Returns the seconds until the next poll, and some locks for ``attend`` after ``skip`` ones.
        """
        self.published, self.put_off = 0, []
        call = calls.PollOutbox(self.outbox, most=AT_ONCE, skip=skip)
        messages, pause_ms, found = backend.run(ask(call))
        for member, text in zip(messages[::2], messages[1::2], strict=True):
            token, _, name = member.decode().partition(" ")
            self._publish(backend, name, token, text)
            if self.unreachable:
                break
        if len(messages) == 2 * AT_ONCE and not self.unreachable:
            return 0.0, found
        return (pause_ms / 1000 if pause_ms >= 0 else math.inf), found

    def publish_due(self, backend: BaseLockBackend, *, attends: bool = False) -> None:
        """Publish until nothing is due or the broker is unreachable; ``attends`` to all locks."""
        published, put_off, skip, is_due = 0, list[tuple[str, str]](), 0, True
        while (is_due or skip) and not self.unreachable:
            is_due = is_due and skip > 0
            pause, found = self.publish(backend, skip if attends else -1)
            is_due |= (attends and self.attend(backend, found)) or not pause
            skip = skip + len(found) if found else 0
            published += self.published
            put_off += self.put_off
        self.published, self.put_off = published, put_off

    def unpark(self, backend: BaseLockBackend, name: str, task_id: str | None = None) -> int:
        """Send the parked messages of a lock, or of one task, back to the broker; return how many.

        They lose their positions.
        """
        ids = () if task_id is None else (digest(task_id),)
        return self._repeat(backend, calls.Unpark(self.outbox, name, ids=ids))

    def restore(self, backend: BaseLockBackend, name: str, *, delete: bool) -> int:
        """Publish or delete messages put aside, of a lock or of all (""); return how many."""
        return self._repeat(backend, calls.Restore(self.outbox, name, delete=delete))

    def _repeat(self, backend: BaseLockBackend, call: calls.OutboxCall) -> int:
        number = 0
        while found := backend.run(ask(call)):
            number += found
        self.publish_due(backend)
        return number

    def unpark_revoked(self, backend: BaseLockBackend, task_ids: Iterable[str]) -> None:
        """Send revoked tasks that are parked back to the broker: workers drop them then."""
        ids = [*map(digest, task_ids)]
        for start in range(0, len(ids), 100):
            backend.run(ask(calls.Unpark(self.outbox, ids=tuple(ids[start : start + 100]))))

    def attend(self, backend: BaseLockBackend, found: list[Any]) -> bool:
        """Set limits of backlogs, give up reservations of ended tasks; return if any changed."""
        asked, changed = 0, False
        for lock, *backlogs in found:
            name = lock.decode()
            for turn, token, known in backlogs:
                owner = token[32:].decode()
                if (task := self._owner(owner)) is None:
                    continue
                number, limit = getattr(task, GUARD).options.concurrency, ""
                if not callable(number):
                    limit = limit_of(Sharing(shared=number != 1, limit=number))
                elif asked < AT_ONCE:
                    asked += 1
                    limit = self._ask(backend, name, token.decode(), task)
                if limit and limit != known.decode().partition(" ")[0]:
                    about = {"turn": turn.decode(), "owner": owner, "worker": worker()}
                    call = calls.SetParkedLimit(self.outbox, name, limit=limit, **about)
                    changed |= bool(backend.run(ask(call)))
        return self._give_up_ended(backend, [lock.decode() for lock, *_ in found]) or changed

    def _owner(self, owner: str) -> Any:
        """Return the guarded task whose name has this digest."""
        if owner not in self._owners:
            tasks = (task for task in list(self.app.tasks.values()) if hasattr(task, GUARD))
            self._owners = {digest(task.name): task for task in tasks}
        return self._owners.get(owner)

    def _ask(self, backend: BaseLockBackend, name: str, token: str, task: Any) -> str:
        """Return the limit that a task's function gives for a message; "" if it fails."""
        try:
            (text,) = backend.run(ask(calls.ReadMessage(self.outbox, name, token=token)))
            message = unsealed(text or b"", name, token)
            args, kwargs, _ = private.decode_body(self.app, message["body"], message["options"])
            guard = getattr(task, GUARD)
            guard.key(task, args, kwargs)
            return limit_of(guard.sharing(task, tuple(args), kwargs))
        except Exception as error:  # of any function
            if repr(error) != self._failure:
                text = "Could not compute the concurrency of task %s, parked for lock %r: %s"
                logger.warning(text, task.name, name, error)
            self._failure = repr(error)
            return ""

    def _give_up_ended(self, backend: BaseLockBackend, names: list[str]) -> bool:
        """Give up old reservations of ended tasks, as after a failover to an older copy."""
        now, freed = monotonic(), False
        recent = {name: at for name, at in self._asked.items() if at >= now - OLD}
        due = [name for name in names if name not in recent]
        self._asked = recent | dict.fromkeys(due, now)
        for one in backend.holders_of(due) if due else ():
            task = self.app.tasks.get(one.task_name or "")
            if task and (one.held_for or 0.0) >= OLD and key_locks.has_ended(task, one):
                why = "its task has ended, which this server missed"
                if backend.free(one.name, one.token_id, reason=why) is not None:
                    freed = True
                    logger.warning("Released lock %r of %s: %s", one.name, one, why)
        return freed

    def _publish(self, backend: BaseLockBackend, name: str, token: str, signed: bytes) -> None:
        message: dict[str, Any] = {}
        try:
            message = unsealed(signed, name, token)
            self._remove_position(self._task_of(message), message)
            self._send(message)
        except Unreadable as error:
            times = 0.0 if isinstance(error, Poison) else 1000.0
            keeps, aside = round(UNREAD_KEEPS_LOCK * times), round(UNREAD_ASIDE * times)
            self._put_off(backend, name, token, f"{error}", keeps_lock=keeps, aside=aside)
        except ImproperlyConfigured:
            raise
        except self._no_connection() as error:
            self.close()
            failed = str(error) or "no answer"
            if failed != self.unreachable:
                text = "Could not send parked task %s; retrying: %s"
                task_id = escape_unprintable(str(message["id"]))
                logger.warning(text, task_id, escape_unprintable(failed))
            self.unreachable = failed
        except Exception as error:  # the broker has no use for this one
            self.close()
            self._put_off(backend, name, token, str(error) or repr(error))
        else:
            self.unreachable = ""
            self.published += 1
            backend.run(ask(calls.EndParking(self.outbox, name, token=token)))

    def _task_of(self, message: dict[str, Any]) -> Any:
        task = self.app.tasks.get(message["options"]["headers"].get("task"))
        if task is None or not hasattr(task, GUARD):
            raise Unreadable("this worker has no guarded task of this name")
        return task

    def _put_off(
        self, backend: BaseLockBackend, name: str, token: str, why: str, **how: Any
    ) -> None:
        self.put_off.append((name, why))
        again = round(RETURNED_AGAIN * 1000)
        call = calls.PutOff(self.outbox, name, token=token, why=why, again=again, **how)
        if new := backend.run(ask(call)):
            text = "Could not send a parked message of lock %r, and %s: %s"
            then = "set it aside" if how.get("aside") == 0 or new > 1 else "will retry"
            logger.error(text, name, then, escape_unprintable(why))

    def _remove_position(self, task: Any, message: dict[str, Any]) -> None:
        headers, task_id = message["options"]["headers"], message["id"]
        if task.ignore_result or headers.get("ignore_result") or monotonic() < self._no_results:
            return
        try:
            stored = task.backend.get_task_meta(task_id)
            if stored["status"] == PARKED and "position" in stored["result"]:
                del stored["result"]["position"]
                task.update_state(task_id, PARKED, stored["result"])
        except Exception:  # of any result backend; it may take long to fail
            self._no_results = monotonic() + RETURNED_AGAIN

    def _send(self, message: dict[str, Any]) -> None:
        policy = {"max_retries": 1, "interval_start": 0.0}
        options = {**message["options"], "retry": True, "retry_policy": policy}
        # A message that no queue takes comes back, where a broker (RabbitMQ) knows how.
        self._open().publish(message["body"], mandatory=True, timeout=CONFIRM_WITHIN, **options)

    def _open(self) -> Any:
        if self._producer is None:
            connection = self.app.connection_for_write()
            timeouts = ("socket_timeout", "read_timeout", "write_timeout")
            connection.transport_options = {
                **dict.fromkeys(timeouts, CONFIRM_WITHIN),
                **connection.transport_options,
                "confirm_publish": True,
                "max_retries": 1,
            }
            self._producer = self.app.amqp.Producer(connection, auto_declare=False)
        return self._producer

    def _no_connection(self) -> tuple[type[Exception], ...]:
        known = () if self._producer is None else self._producer.connection.connection_errors
        return OperationalError, OSError, *known
