"""The guard around the sending of a task: at most one message of a key waits in the queue."""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery import current_task, uuid
from celery.utils.time import maybe_make_aware
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_redis_lock.celery import key_locks
from django_redis_lock.celery.key_locks import QUEUED, GuardedCall, MessageHeader, queued_since
from django_redis_lock.celery.options import Arguments, Guard
from django_redis_lock.celery.private import delays_by_whole_seconds, execution_options
from django_redis_lock.celery.run import Run, runs
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import Renew, ask
from django_redis_lock.protocol.lease import milliseconds
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import EXCLUSIVE
from django_redis_lock.tasks.conflicts import describe, logger

EXPIRY_SLACK = 5.0  # seconds for which an expired message is reserved, because clocks differ
MOST_TRIES = 100  # attempts to take a reservation, each of which another sender may frustrate
_GOES_ON = ("link", "link_error", "chain", "chord", "group_id")
_IN_CANVAS = ("chain", "chord", "group_id", "parent_id", "root_id")


class Sending(GuardedCall):
    """One call of ``apply_async``, with its further arguments as the ``message``."""

    task_id: str
    _record: key_locks.TaskLock | None = None  # that the message supersedes an older one

    def __init__(
        self, guard: Guard, task: Any, arguments: Arguments, message: dict[str, Any], publish: Any
    ) -> None:
        super().__init__(guard.options, task, message.get("task_id") or uuid(), arguments)
        self._guard, self._message, self._publish = guard, message, publish
        self.policy = self.options.queue_policy
        self._timing = {**execution_options(task), **message}
        delay = _seconds_until_due(message)
        # Rounded up where the broker can't express it, so no message comes early.
        if delay % 1 and delays_by_whole_seconds(task, *arguments, self._timing):
            for known in (self._message, self._timing):
                known.update(countdown=math.ceil(delay), eta=None)

    def send(self) -> Any:
        """Send the task, unless one with its key waits already. Returns an ``AsyncResult``."""
        task, message = self.task, self._message
        task_id = message.get("task_id")
        # The run that sends this message in its own place, to retry or replace itself.
        ours = (run for run in runs() if run.lock and run.task_id == task_id)
        run = next(ours, None) if task_id else None
        named = MessageHeader.of(message.get("headers"), task_id)
        was_sent = bool(message.get("retries")) or named is not key_locks.NO_HEADER
        if task.app.conf.task_always_eager or (run is None and was_sent):
            return self._publish(**message)
        now = time.time() if self._id_may_be_reused() else 0.0
        self.header = MessageHeader(self.task_id, sent=now if run is None else run.header.sent)
        if run is None and self.options.scope == "run":
            return self._publish_with(self.header) if now else self._publish(**message)
        result = self._send_guarded(run)
        if run is not None:
            run.followed = True
        return result

    def _id_may_be_reused(self) -> bool:
        """Whether the caller has chosen the id; a canvas makes up those of its tasks."""
        in_canvas = any(self._message.get(name) for name in _IN_CANVAS)
        is_generated = in_canvas and key_locks.is_generated_id(self.task_id)
        return bool(self._message.get("task_id")) and not is_generated

    def _is_awaited(self, holder: Holder | None = None) -> bool:
        """Whether something waits for a result of this very message, as a chord does."""
        goes_on = any(self._message.get(name) for name in _GOES_ON)
        # One with the same id gives that result, and may even be this message, sent before.
        if holder is None or holder.task_id != self.task_id:
            return bool(self._message.get("task_id")) or goes_on
        return self.header.sent != key_locks.sent_of(holder) and goes_on

    def _send_guarded(self, run: Run | None) -> Any:
        options = self.options
        try:
            self.key = self._guard.key(self.task, *self.arguments)
            follows = run is not None and run.has_key(self.key, options)
            reserves = not follows and options.scope != "run"
            if reserves and options.scope == "queue_and_run" and options.concurrency != 1:
                self.sharing = self._guard.sharing(self.task, *self.arguments)
            lock, holder = self._take_reservation() if reserves else (None, None)
        except Exception as error:
            unguarded = isinstance(error, LockUnavailable) and options.on_unavailable == "run"
            # A task that has succeeded must not fail because the worker can't continue its chain.
            if not unguarded and not (self._is_awaited() and current_task):
                raise
            logger.warning("Sent task %s[%s] unguarded: %s", self.task.name, self.task_id, error)
            return self._publish_with(self.header)
        if run is not None and follows:
            return self._follow(run)
        if reserves and lock is None:
            return self._give_way(holder)
        if lock is None or not lock.is_held_here:  # there is no reservation for it
            return self._publish_with(self.header)
        return self._publish_reserved(lock, holder)

    def _publish_reserved(self, lock: key_locks.TaskLock, older: Holder | None) -> Any:
        """Send the message; an older one whose reservation it has is superseded then."""
        header, record = self.header.naming(lock), self._record
        try:
            result = self._publish_with(header)
        except BaseException:
            with contextlib.suppress(LockError):
                self._undo(lock, older)
            raise
        with contextlib.suppress(LockError):  # its message may have begun by now
            self.backend.run(ask(Renew([(lock.name, lock.token, milliseconds(self._lease()))])))
            if older is not None and record is not None:
                self.record(record.name, key_locks.SUPERSEDED, older.ttl).take_over(record.token_id)
        return result

    def _undo(self, lock: key_locks.TaskLock, older: Holder | None) -> None:
        """Give the reservation back: to the older message, if it was taken from one."""
        if older is None:
            lock.release()
            return
        marks = {**older.marks, key_locks.SINCE: f"{queued_since(older):.6f}"}
        lease = older.ttl or key_locks.UNSENT_LEASE
        self.handle(older.name, lease, "", older.task_id, **marks).take_over(lock.token_id)
        if self._record is not None:
            self._record.release()

    def _take_reservation(self) -> tuple[key_locks.TaskLock | None, Holder | None]:
        if self.options.on_queue_conflict == "supersede":
            return self._supersede()
        reservation, again = self.reservations[0], False
        name = reservation if self.options.scope == "queue" else self.name
        for _ in range(MOST_TRIES):
            lock = self.handle(name, min(self._lease(), key_locks.UNSENT_LEASE), state=QUEUED)
            lock.sharing = EXCLUSIVE if name == reservation else self.sharing
            if lock.acquire(blocking=False):
                return lock, None
            holders = self.holders([name])
            if not holders and not again:
                again = True
                continue  # it was released just now
            ended = next(filter(self._has_ended, holders), None)
            if ended is not None:
                if lock.take_over(ended.token_id):
                    return lock, None
                self.share_as(ended)
                continue
            own = next((one for one in holders if one.task_name == self.task.name), None)
            skips = self.options.on_queue_conflict == "skip"
            if own is not None or not skips or name == reservation:
                return None, own or next(iter(holders), None)
            # Held by others, or paused: the message waits, and meets the policy for its run.
            name, again = reservation, False
        return None, None

    def _supersede(self) -> tuple[key_locks.TaskLock | None, Holder | None]:
        """Take a free reservation; or that of an older message, which is returned as well.

        What supersedes a message counts as waiting since that did, but as newer than the one that
        it waits behind. If this one expires sooner than all that wait, the handle holds nothing.
        """
        lease, due = self._lease(), _seconds_until_due(self._timing)
        marks = {} if self._expires is None else {key_locks.EXPIRES: repr(self._expires)}
        for attempt in range(MOST_TRIES):
            time.sleep(0.02 if attempt > 1 else 0.0)
            holders = self.holders(self.reservations)
            waiting = [one for one in holders if one.marks.get("state") == QUEUED]
            waiting.sort(key=queued_since, reverse=True)
            taken = [one.name for one in holders]
            free = [name for name in self.reservations if name not in taken]
            outlived = [*filter(self._outlives, waiting)]
            older = next((one for one in outlived if self._may_be_superseded(one, lease)), None)
            if older is None and not free:
                older = next(filter(self._has_ended, waiting), next(iter(outlived), None))
                if older is None and not waiting:
                    return None, holders[0]  # both are held by hand
            name, since = (older.name if older else [*free, self.reservations[0]][0]), f"+{due:.6f}"
            if older is not None:
                others = [queued_since(one) + 1e-6 for one in waiting if one is not older]
                begun = min(queued_since(older), key_locks.clock_at(older) / 1_000_000 + due)
                since = f"{max(begun, *others, 0.0):.6f}"
            unsent = min(lease, key_locks.UNSENT_LEASE)
            lock = self.handle(name, unsent, state=QUEUED, **{**marks, key_locks.SINCE: since})
            if older is None:
                if not free or lock.acquire(blocking=False):
                    return lock, None
            elif self._take_from(older, lock):
                return lock, older
        return None, None

    def _take_from(self, older: Holder, lock: key_locks.TaskLock) -> bool:
        """Take the reservation of an older message, and record that first."""
        name = self.record_of(older.task_id, key_locks.sent_of(older))
        record = self.record(name, key_locks.SUPERSEDING)
        if not record.acquire(blocking=False):
            theirs = self.backend.holder(record.name)
            # Another sender takes the reservation at once, unless it has died.
            if theirs is None or (theirs.held_for or 0.0) < 1.0:
                return False
            if not record.take_over(theirs.token_id):
                return False
        taken = False
        try:
            taken = lock.take_over(older.token_id)
        finally:
            if not taken:
                with contextlib.suppress(LockError):
                    record.release()
        self._record = record
        self.header = replace(self.header, supersedes=record.name)
        return taken

    @property
    def _expires(self) -> float | None:
        left = _seconds_until(self._timing.get("expires"))
        return None if left is None else time.time() + left

    def _outlives(self, reserved: Holder) -> bool:
        """Whether this message expires no sooner than that of a reservation."""
        theirs = float(reserved.marks.get(key_locks.EXPIRES, math.inf))
        return self._expires is None or theirs < self._expires + 0.1  # both were read from a clock

    def _may_be_superseded(self, reserved: Holder, lease: float) -> bool:
        """Whether a message is new, or due later than one that has this lease."""
        waited = key_locks.clock_at(reserved) / 1_000_000 - queued_since(reserved)
        options = self.options
        return waited < options.supersede_for or (reserved.ttl or 0.0) > lease + options.countdown

    def _has_ended(self, holder: Holder) -> bool:
        task = self.task.app.tasks.get(holder.task_name, self.task)
        return key_locks.has_ended(task, holder)

    def _give_way(self, holder: Holder | None) -> Any:
        policy, awaited = self.options.on_queue_conflict, self._is_awaited(holder)
        conflict = self.conflict(holder)
        if callable(policy) and not awaited:
            return policy(conflict)
        if policy == "raise" and not awaited:
            raise conflict.error()
        if awaited or holder is None or holder.task_id is None:
            # Sent only to give a result to callers that wait for this id.
            header = replace(self.header, duplicate_of=dict(describe(holder) or {}))
            return self._publish_with(header)
        conflict.skip()
        return self.task.AsyncResult(holder.task_id)

    def _follow(self, run: Run) -> Any:
        """Send the next message of a run's own key, which may take over its lock."""
        assert run.lock is not None
        header, lock, options = replace(self.header, follows=run.fence), run.lock, self.options
        passes_on = options.scope == "queue_and_run" and lock.name == self.name
        if not (passes_on and lock.is_held_here):
            return self._publish_with(header)
        header = replace(header, lock=lock.name, ticket=lock.ticket, using=options.using)
        result = self._publish_with(header)
        run.reserve_for = self._lease()
        return result

    def _publish_with(self, header: MessageHeader) -> Any:
        headers = {**(self._message.get("headers") or {}), **header.as_headers()}
        return self._publish(**{**self._message, "task_id": header.task_id, "headers": headers})

    def _lease(self) -> float:
        """Return the seconds for which the message may have its lock while it waits."""
        seconds = _seconds_until_due(self._timing) + self.options.queue_timeout
        expiry = _seconds_until(self._timing.get("expires"))
        return seconds if expiry is None else min(seconds, expiry + EXPIRY_SLACK)


def _seconds_until_due(options: Mapping[str, Any]) -> float:
    countdown = options.get("countdown")
    return _seconds_until(options.get("eta") if countdown is None else countdown) or 0.0


def _seconds_until(moment: Any) -> float | None:
    if isinstance(moment, str):
        moment = parse_datetime(moment)
    if isinstance(moment, datetime.datetime):
        moment = (maybe_make_aware(moment) - timezone.now()).total_seconds()
    return max(0.0, float(moment)) if isinstance(moment, int | float) else None
