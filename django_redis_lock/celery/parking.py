"""Tasks that wait without a worker: their messages are parked in a backlog of their lock.

"Parked messages" in ``docs/explanation/celery.md`` explains this, the outbox, and its polling.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from django_redis_lock.celery import private
from django_redis_lock.celery.key_locks import QUEUED, MessageHeader
from django_redis_lock.celery.outbox import PARKED, digest, limit_of, outbox_of, sealed, worker
from django_redis_lock.celery.run import Run
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import ask, withdrawal
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.records import Holder
from django_redis_lock.tasks.conflicts import parked, task_parked
from django_redis_lock.transport.parking import EndParking, Park


def park(run: Run, holder: Holder | None, body: private.Body | None = None) -> bool:
    """Park the message of a run. Returns False if too many wait, or the lock is reserved for it.

    ``body``: that of the message as it came, if it is known. Raises ``LockUnavailable``,
    ``ImproperlyConfigured`` without a ``SECRET_KEY``, and ``InvalidLockBackend``.
    """
    backend, options = run.backend, run.options
    space = "(in a test, it needs the lock space 'settings')"
    backend.require(backend.runs_scripts, f"Task {run.task.name} can't be parked {space}")
    _store_state(run, holder)  # first, because the task may run at once then
    request, header = _reserved(run)
    unparked, outbox = replace(header, parked=run.header.parked), outbox_of(run.task.app)
    call = Park(
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
            backend.run(ask(EndParking(outbox, run.name, token=request.token, turn=run.turn)))
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
    run.conflict(holder).notify(task_parked, "is parked: lock %r is %s")
    return True


def _store_state(run: Run, holder: Holder | None) -> None:
    waiters = holder.waiters if holder else None
    if not (run.task.ignore_result or run.request.ignore_result):
        with contextlib.suppress(Exception):  # of any result backend
            meta = {"key": run.key, "position": (waiters or 0) + 1}
            run.task.backend.store_result(run.task_id, meta, PARKED, request=run.request)


def _reserved(run: Run) -> tuple[Request, MessageHeader]:
    """Return the request for the lock, as a reservation for the message, and the header for that.

    Its token, which ``parked.lua`` describes, is the same for each delivery.
    """
    old, lock = run.header, run.handle(run.name, run.options.queue_timeout, state=QUEUED)
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
