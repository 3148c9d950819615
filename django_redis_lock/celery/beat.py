"""Several beats of which one leads and sends, and the others take its place if it ends.

``docs/how-to/lead-a-beat.md`` explains how notes on the lock server prevent that two send the same.
"""

from __future__ import annotations

import contextlib
import logging
import re
from datetime import datetime
from time import time
from typing import Any, ClassVar

from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, qualname, symbol_by_name
from celery.utils.time import maybe_make_aware

from django_redis_lock.exceptions import LockError, LockLost
from django_redis_lock.handler import lock
from django_redis_lock.protocol.calls import ask
from django_redis_lock.tasks.conflicts import logger
from django_redis_lock.transport.parking import NoteTick, ReadTicks

STANDBY = 5.0
"""Seconds for which a beat waits for the lead at a time. That of ``worker -B`` ends in between."""
TRY_AGAIN = 1.0  # seconds after which a beat tries again after an error of the lock server
TIME = re.compile(rb"\d{1,10}(\.\d+)?")
AHEAD = 86400.0  # seconds by which the clock of a former leader may have been ahead


class LeaderScheduler(Scheduler):
    """A scheduler that runs another one while it leads: of several beats, one sends.

    ``celery -A app beat -S django_redis_lock.celery:LeaderScheduler`` leads the ``beat_scheduler``
    of the app, by default Celery's own. A subclass can set another one, and the attributes below. A
    beat that is stopped hands over at once; the lead of one that was killed ends with its lease.

    Raises ``InvalidLockBackend`` for an alias that is not of ``RedisLockBackend``.
    """

    scheduler: ClassVar[str | type[Scheduler] | None] = None  # what is led, or ``"module:Class"``
    lock_name: ClassVar[str] = "celery-beat"  # apps that share a server need a name each
    lease: ClassVar[float] = 15.0  # seconds after which another leads if this beat was killed
    using: ClassVar[str] = "default"  # an alias of LOCKS
    info = ""  # what the banner of beat says

    def __init__(self, app: Any, *, lazy: bool = False, **options: Any) -> None:
        super().__init__(app, lazy=True, **options)
        self._lock = lock(self.lock_name, self.lease, auto_renew=True, using=self.using)
        self._backend = self._lock.backend
        self._backend.require(self._backend.runs_scripts, f"{qualname(self)} can't lead")
        aliases: Any = dict(load_extension_class_names("celery.beat_schedulers"))  # type: ignore[arg-type]
        given: Any = self.scheduler or app.conf.beat_scheduler
        kind: type[Scheduler] = symbol_by_name(given, aliases=aliases)
        if issubclass(kind, LeaderScheduler):
            kind = PersistentScheduler
        self._kind: Any = type("Led", (_Led, kind), {"leader": self})
        self._options = options
        self._led: Any = None  # while this beat leads
        self._began = 0.0
        self._sent: dict[str, float] = {}  # when which entry was sent, in seconds of the epoch
        self._busy, self._asked_to_end, self._said = False, False, ""
        unused = self._kind(app, lazy=True, **options)
        self.max_interval = unused.max_interval
        self.info = f"    . leads -> {qualname(kind)} as {self.lock_name!r}\n{unused.info}"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, or wait for the lead. Returns the seconds until the next tick."""
        if self._asked_to_end:  # and that exception was lost, as in the __del__ of a result
            raise SystemExit
        self._busy = True
        try:
            if self._led is None and not self._take_lead():
                return 0.0
            if self._lock.lost:
                raise LockLost("its lease ended, or an operator released it", name=self.lock_name)
            return float(self._led.tick(*args, **kwargs))
        except LockError as error:
            self._say(logging.WARNING, f"beat: does not lead: {error}")
            led = self._led
            if isinstance(error, LockLost):
                self._led = None  # another leads, so what it would store is out of date
            self._resign(led)
            return 0.0 if isinstance(error, LockLost) else TRY_AGAIN
        finally:
            self._busy = False

    def sync(self) -> None:
        if self._led is not None:
            self._led.sync()

    def close(self) -> None:
        """Hand over the lead. A tick that this interrupts ends first."""
        # Beat calls this in the handler of a signal, which raises an exception, and then once more.
        self._asked_to_end = self._busy
        if not self._busy:
            self._resign(self._led)

    def _take_lead(self) -> bool:
        if not self._lock.acquire(blocking_timeout=STANDBY):
            holder = self._backend.holder(self._lock.name)
            self._say(logging.INFO, f"beat: stands by, while {holder or 'another'} leads")
            return False
        self._began, self._sent = time(), {}
        notes = self._backend.run(ask(ReadTicks(self._lock.name)))
        for one, at in zip(notes[::2], notes[1::2], strict=True):
            if TIME.fullmatch(at) and float(at) <= self._began + AHEAD:
                self._sent[one.decode(errors="replace")] = float(at)
            else:
                text = "beat: ignored a note without a valid time for %r: %.200r at %.30r"
                logger.warning(text, self.lock_name, one, at)
        self._led = self._kind(self.app, **self._options)
        self._say(logging.INFO, f"beat: leads, fence {self._lock.fence}")
        return True

    def _resign(self, led: Any) -> None:
        try:
            if led is not None:
                led.close()
        except Exception:  # of any scheduler
            logger.exception("beat: could not store the state of the schedule")
        finally:
            self._led = None
            with contextlib.suppress(LockError):  # it is free when its lease ends
                self._lock.release()

    def _say(self, level: int, text: str) -> None:
        if text != self._said:
            logger.log(level, "%s", text)
        self._said = text

    def note(self, entry: Any) -> None:
        """Note that an entry is sent. Raises ``LockLost`` if another leads, ``LockUnavailable``."""
        at, token = time(), self._lock.held_lease().token
        if not self._backend.run(ask(NoteTick(self._lock.name, token, entry.name, at))):
            raise LockLost(f"another beat may have sent {entry.name!r}", name=self.lock_name)
        self._sent[entry.name] = at

    def catch_up(self, entry: Any) -> None:
        """Have an entry know when it was sent last, also by a beat that could not store that."""
        at, model = self._sent.get(entry.name), getattr(entry, "model", None)
        known = maybe_make_aware(entry.last_run_at).timestamp()
        if model is not None and model.start_time is not None:
            # If it was enabled again, DatabaseScheduler has gone back thirty years from then.
            known = max(known, model.date_changed.timestamp())
        # One that has never led takes the time of its start for that of the last run.
        if at is None or (known >= at and (model is not None or known < self._began)):
            return
        entry.last_run_at = datetime.fromtimestamp(at, self.app.timezone)
        for one in (entry,) if model is None else (entry, model):
            one.total_run_count += known < at  # by which a task that is sent once ends


class _Led:
    """Mixed into a scheduler, so that it sends what its leader has noted."""

    leader: LeaderScheduler
    schedule: Any

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        for entry in self.schedule.values():
            self.leader.catch_up(entry)
        super().populate_heap(*args, **kwargs)  # type: ignore[misc]

    def reserve(self, entry: Any) -> Any:
        self.producer  # type: ignore[attr-defined] # noqa: B018 - connects to the broker first
        self.leader.note(entry)
        return super().reserve(entry)  # type: ignore[misc]

    def sync(self) -> None:
        if self.leader._led is self and not self.leader._lock.lost:
            super().sync()  # type: ignore[misc]
