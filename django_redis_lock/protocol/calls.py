"""The steps that the protocol yields, calls to the server, waits, pauses and signals; and drivers,
which carry out generators of them.

Each step knows how to carry itself out, with blocking calls (``do``) and under asyncio (``ado``).
The drivers ``run`` and ``arun`` handle interruption, cancellation and forks. They carry out what a
caller asked for, and within that the steps of a call which has some of its own. A ``Runner`` is
what calls are carried out on: a backend.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django_redis_lock import signals
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.support.process import Process, current_process, known_process
from django_redis_lock.support.threads import InThread

if TYPE_CHECKING:
    from django_redis_lock.protocol.records import Fields
    from django_redis_lock.protocol.waiting import LocalWaiter, WaiterRegistry

logger = logging.getLogger("django_redis_lock")
Result = TypeVar("Result")
RETRY_PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each further sending of a call that the server did not answer."""
RETRY_FOR = 2.0
"""Seconds after which a call is not sent again; a server that lets calls time out is down."""
GRACE = 0.3
"""Seconds that the server gets to answer once the wait of a caller has ended."""
LAST_CALL = 0.02
"""Seconds in which an event loop reads what arrived while it was blocked, before a call counts as
not answered."""
TIDY_FOR = 0.25
"""Seconds that an interrupted or cancelled caller waits for the server to clean up."""
PAGE = 50
"""Entries of the audit that one call reads, so that it does not block the server for long. A script
reads about a hundred in a millisecond."""
PASSED_OVER = {"django_redis_lock", "contextlib"}
"""Packages that call on behalf of the caller."""


class Step:
    """One thing that a generator asks its driver to do; the driver sends back the result."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lock_name!r}>"  # without tokens, for tracebacks

    def do(self, port: Any) -> Any:
        """Carry it out, blocking this thread or greenlet."""
        raise NotImplementedError

    async def ado(self, port: Any) -> Any:
        """Carry it out in this asyncio task."""
        raise NotImplementedError

    @property
    def lock_name(self) -> str:
        """The name of the lock that it is about; empty if that is none, or several."""
        subject = getattr(self, "waiter", self)
        subject = getattr(subject, "request", subject)
        name: str = getattr(subject, "name", "")
        return name


Steps = Generator[Step, Any, Result]
"""Yields steps, is sent their results, and returns its own."""


@dataclass(slots=True, eq=False, repr=False)
class Call(Step):
    """One round trip: an atomic operation that is safe to send twice."""

    patient: bool = field(default=True, kw_only=True)
    """Whether to send it again if no answer comes."""
    until: float = field(default=math.inf, kw_only=True)
    """When (monotonic) its caller gives up; infinite: leave it to the socket timeout."""
    first_sent_at: float | None = field(default=None, init=False)
    sent_at: float = field(default=0.0, init=False)
    """The time (monotonic) of the latest sending; the backend sets it through ``sending``."""

    def do(self, port: Runner) -> Any:
        return port.call(self)

    async def ado(self, port: Runner) -> Any:
        return await self._in_time(port.acall(self))

    async def _in_time(self, answer: Awaitable[Result]) -> Result:
        if self.until == math.inf:
            return await answer
        loop, left = asyncio.get_running_loop(), max(0.0, self.until - monotonic())
        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(left, lambda: limit.reschedule(loop.time() + LAST_CALL))
                try:
                    return await answer
                finally:
                    timer.cancel()
        except TimeoutError:
            raise LockUnavailable(
                "The server did not answer in time", name=self.lock_name
            ) from None

    @property
    def resent(self) -> bool:
        """Whether it was sent more than once, so that an earlier sending may have succeeded."""
        return self.first_sent_at is not None and self.sent_at != self.first_sent_at

    def sending(self) -> None:
        self.sent_at = monotonic()
        if self.first_sent_at is None:
            self.first_sent_at = self.sent_at


@dataclass(slots=True, eq=False, repr=False)
class _TakeOne(Call):
    """A call that takes one lock."""

    request: Request

    def sending(self) -> None:
        self.request.sent = self.request.under_way = True
        Call.sending(self)

    def lease(self, answer: Any) -> Lease | None:
        """Return the lease that an answer grants, if it does."""
        request = self.request
        request.under_way = False
        if isinstance(answer, int):  # the fence, and nothing else: the lease is as asked
            return Lease(request, answer, self.sent_at + request.lease_ms / 1000)
        if answer is None or answer[0] <= 0:
            return None
        fence, ttl_ms = answer[0], answer[1]
        return Lease(request, fence, self.sent_at + ttl_ms / 1000 if ttl_ms >= 0 else math.inf)


@dataclass(slots=True, eq=False, repr=False)
class Acquire(_TakeOne):
    """Take the lock or, if it waits in a process, join its queue; ``acquire.lua`` describes the
    answer."""

    waits_in: str
    """What the server calls that process; empty not to wait."""
    final: bool = field(default=False, kw_only=True)
    """Whether its caller does not wait, so that a refusal is the last answer."""


@dataclass(slots=True, eq=False, repr=False)
class TakeOver(_TakeOne):
    """Take the lock from the holder with a token id, ahead of the queue; see ``take_over.lua``."""

    token_id: str


@dataclass(slots=True, eq=False, repr=False)
class Release(Call):
    """Release the lock or, given an ``entry``, leave its queue.

    The answer is true if the token held the lock.
    """

    name: str
    token: str
    entry: str = ""
    shared: bool = field(default=False, kw_only=True)
    """Whether it is certainly shared; else either is tried."""
    unclaimed: bool = field(default=False, kw_only=True)
    """Release it only if it was handed off and not yet claimed."""


@dataclass(slots=True, eq=False, repr=False)
class Claim(Call):
    """Claim a lock that was handed off.

    The server answers 1, or 0 if the grant was taken back. The answer is not used, so a backend
    that can send without waiting for it does so, and returns ``None``.
    """

    name: str
    token: str
    fence: int
    end_ms: int
    """When the lease ends, by the server's clock."""
    shared: bool = field(default=False, kw_only=True)
    patient: bool = field(default=False, kw_only=True)


@dataclass(slots=True, eq=False, repr=False)
class Renew(Call):
    """Set leases, given as (name, token, ms). Answers what is left of each; see ``renew.lua``."""

    leases: Sequence[tuple[str, str, int]]
    at_least: bool = field(default=False, kw_only=True)
    """Leave a longer lease alone."""


@dataclass(slots=True, eq=False, repr=False)
class Inspect(Call):
    """Read the holders of locks; ``inspect.lua`` describes the answer."""

    names: Sequence[str]
    skip: int = 0
    """How many of those who share a lock were read already."""


@dataclass(slots=True, eq=False, repr=False)
class SetLimit(Call):
    """Set how many permits of a lock there are, ``None`` to leave that to its callers."""

    name: str
    limit: int | None
    by: str


@dataclass(slots=True, eq=False, repr=False)
class ReadLimits(Call):
    """Read the limits that were set. Answers a list of names, each followed by its limit."""


@dataclass(slots=True, eq=False, repr=False)
class ForceRelease(Call):
    """Take a lock from the holder with a token id, and write an entry into the audit.

    Answers 1, or 2 if the entry was not written, as one without fields; ``None`` if that holder no
    longer has the lock and no earlier sending of this call took it.
    """

    name: str
    token_id: str
    entry: Fields
    cap: int
    """How many entries the audit has beside this one."""


FORCED_RELEASE = Inspect, ForceRelease
"""The calls of a forced release. A server that answers one of them with an error has released
nothing. Other calls may have been carried out in part, or on too few replicas."""


@dataclass(slots=True, eq=False, repr=False)
class ReadHistory(Call):
    """Read a page of the audit, of one lock, or of all for ``""``; see ``history.lua``."""

    name: str
    before: str
    """The id of the entry before which the page begins; ``+`` for the newest."""
    limit: int

    @property
    def count(self) -> int:
        return PAGE if self.name else min(PAGE, self.limit)


@dataclass(slots=True, eq=False, repr=False)
class ReadQueue(Call):
    """Read a page of the waiters of a lock; ``waiting.lua`` describes the answer."""

    name: str
    after: int = 0
    """The position after which it begins."""


@dataclass(slots=True, eq=False, repr=False)
class ReadIndex(Call):
    """Read a page of the held locks, or of the queues of other locks; see ``index.lua``."""

    start: str
    after: bytes
    count: int
    queues: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Heartbeat(Call):
    """Tell a server, or a shard, that this process waits; ``heartbeat.lua`` describes the answer.

    ``names`` has the digest of the last waiter of each lock. Only some of them are told at a time.
    """

    process: str
    names: Mapping[str, str]
    turn: int

    MOST: ClassVar[int] = 64

    def some(self) -> list[tuple[str, str]]:
        """Return those whose turn it is."""
        pairs = [*self.names.items()]
        first = self.turn * self.MOST % max(len(pairs), 1)
        return (pairs[first:] + pairs[:first])[: self.MOST]


@dataclass(slots=True, eq=False, repr=False)
class ComeBack(Call):
    """Let waiters of a lock come back to its queue; ``come_back.lua`` describes the answer."""

    process: str
    name: str
    requests: Sequence[Request]


@dataclass(slots=True, eq=False, repr=False)
class Listen(Call):
    """Make a ``ReceivingRegistry`` receive the grants of a lock for this process."""

    registry: Any
    name: str

    def do(self, port: Runner) -> None:
        self.registry.listen(self.name, self.until)

    async def ado(self, port: Runner) -> None:
        await self._in_time(self.registry.alisten(self.name))


@dataclass(slots=True, eq=False, repr=False)
class Wait(Step):
    """Sleep until the waiter has something to do, or until a time (monotonic)."""

    registry: WaiterRegistry
    waiter: LocalWaiter
    until: float

    def do(self, port: Runner) -> None:
        self.registry.wait(self.waiter, self.until)

    async def ado(self, port: Runner) -> None:
        await self.registry.await_(self.waiter, self.until)


class BeginToWait(Step):
    """Warn a caller whose wait will block an event loop."""

    __slots__ = ()

    def do(self, port: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        level, frame = 1, sys._getframe()  # the warning is for who called this package
        while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
            level, frame = level + 1, frame.f_back
        warnings.warn(  # with a text that names no lock, so that Python shows it once a place
            "A lock is waited for with a blocking call, which stops the event loop of this thread: "
            "its other tasks can neither run nor release the lock. Use 'async with', or await "
            "aacquire().",
            RuntimeWarning,
            stacklevel=level,
        )

    async def ado(self, port: Any) -> None:
        pass


@dataclass(slots=True, eq=False, repr=False)
class Pause(Step):
    seconds: float

    def do(self, port: Any) -> None:
        time.sleep(self.seconds)

    async def ado(self, port: Any) -> None:
        await asyncio.sleep(self.seconds)


def withdrawal(request: Request, *, patient: bool = False, until: float = math.inf) -> Release:
    entry = request.entry if request.waits_in else ""
    name, token = request.name, request.token
    return Release(name, token, entry, shared=request.shared, patient=patient, until=until)


def ask(call: Call, *, patient: bool = True) -> Steps[Any]:
    """Carry out a call, sending it again for a short time if the server can't be reached."""
    began = monotonic()
    # A caller that is late may have been stopped for a while; that proves nothing about the server.
    call.until = max(call.until, began + GRACE)
    pauses = iter(RETRY_PAUSES if patient and call.patient else ())
    while True:
        unproven = call.first_sent_at is not None
        try:
            return (yield call)
        except LockUnavailable as error:
            error.not_applied = error.not_applied and not (unproven or call.resent)
            if error.not_applied:
                call.first_sent_at = None  # as if it had not been sent
            pause = next(pauses, None)
            now = monotonic()
            error.silent = now - began > RETRY_FOR or now >= call.until
            if pause is None or error.silent or not error.passing or now + pause >= call.until:
                raise
        yield Pause(pause)


@dataclass(slots=True, eq=False, repr=False)
class Emit(Step):
    """Send a Django signal. A failing receiver is logged and changes nothing."""

    signal: signals.LockSignal
    arguments: dict[str, Any]

    def do(self, port: Runner) -> None:
        self.signal.send_robust(**self.arguments)

    async def ado(self, port: Runner) -> None:
        await self.signal.asend_robust(**self.arguments)


def run(port: Any, steps: Steps[Result]) -> Result:
    """Carry out steps in this thread or greenlet, and return their result.

    After an interruption the remaining steps clean up. A server that does not answer soon then
    counts as unavailable, and the clean-up is left to the background. Raises ``LockError`` in a
    child that was forked meanwhile, since the parent continues with the steps.
    """
    process = current_process()
    first: Step | None = None
    try:
        first = step = next(steps)
        while True:
            answer = step.do(port)
            if process is not known_process():
                break
            step = steps.send(answer)
    except StopIteration as stop:
        if process is known_process():
            result: Result = stop.value
            return result
    except BaseException as error:  # of a step, or of a signal handler at any moment
        if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
            raise
        return _run_on(port, steps, error, process, first)
    steps.close()
    raise _begun_by(process, first)


def _run_on(
    port: Any,
    steps: Steps[Result],
    raised: BaseException | None,
    process: Process,
    first: Step | None,
) -> Result:
    """Let the steps handle an error, and carry out those that they take then."""
    answer: Any = None
    until: float | None = None  # set once it cleans up
    while True:
        if process is not known_process():
            steps.close()
            raise _begun_by(process, first)
        if until is None and not isinstance(raised, LockError | None):
            until = monotonic() + TIDY_FOR
        try:
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
            answer = step.do(port) if until is None else _tidy(port, step, until)
        except StopIteration as stop:
            if process is not known_process():
                raise _begun_by(process, first) from None
            result: Result = stop.value
            return result
        except BaseException as error:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raised = None  # else the error keeps this frame, and the frame the error
                raise
            raised = error


def _tidy(port: Any, step: Step, until: float) -> Any:
    left, step = _limited(step, until)
    if not isinstance(step, Call):
        return step.do(port)
    if not left:
        raise _late()
    try:
        return InThread(partial(step.do, port)).result(until)
    except TimeoutError:
        raise _late() from None


def _limited(step: Step, until: float) -> tuple[float, Step]:
    left = max(0.0, until - monotonic())
    return left, Pause(min(left, step.seconds)) if isinstance(step, Pause) else step


def _late() -> LockUnavailable:
    return LockUnavailable(f"The server did not answer within {TIDY_FOR:g} s of the interruption")


def _begun_by(process: Process, first: Step | None) -> LockError:
    name = "" if first is None else first.lock_name  # pauses and signals have none
    return LockError(
        f"This operation on lock {name!r} was begun by the parent process {process.pid}, which "
        f"continues it. Begin a new one in the forked child.",
        name=name,
    )


async def arun(port: Any, steps: Steps[Result]) -> Result:
    """Carry out steps in this asyncio task, and return their result. Raises as ``run`` does.

    After a cancellation the remaining steps clean up as in ``run``. They do so in a task of their
    own, so a second cancellation does not stop them.
    """
    return await _arun(port, steps, steps.send, None, current_process())


async def _arun(
    port: Any,
    steps: Steps[Result],
    resume: Callable[[Any], Step],
    value: Any,
    process: Process,
    *,
    until: float | None = None,
) -> Result:
    first: Step | None = None
    try:
        while process is known_process():
            step = resume(value)
            first = first or step
            try:
                answer = await (step.ado(port) if until is None else _atidy(port, step, until))
                resume, value = steps.send, answer
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if until is None and process is known_process():
                    soon = monotonic() + TIDY_FOR
                    rest = _arun(port, steps, steps.throw, cancelled, process, until=soon)
                    task = retain(asyncio.ensure_future(rest))
                    # Unlike shield() of Python 3.14, it reports no error of an abandoned task.
                    await asyncio.wait([task])
                    return task.result()
                resume, value = steps.throw, cancelled
            except BaseException as error:
                resume, value = steps.throw, error
    except StopIteration as stop:
        if process is known_process():
            result: Result = stop.value
            return result
    finally:
        value = None  # else an error keeps this frame, and the frame the error
    steps.close()
    raise _begun_by(process, first)


async def _atidy(port: Any, step: Step, until: float) -> Any:
    left, step = _limited(step, until)
    if not isinstance(step, Call):
        return await step.ado(port)
    try:
        async with asyncio.timeout(left):
            return await step.ado(port)
    except TimeoutError:
        raise _late() from None


_retained: set[asyncio.Future[Any]] = set()


def retain(task: asyncio.Future[Result]) -> asyncio.Future[Result]:
    """Retain a task that nothing may be awaiting, and retrieve its exception."""
    _retained.add(task)
    task.add_done_callback(_retained.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class Runner:
    """Carries out the steps of the protocol, with the calls that a subclass carries out."""

    alias: str

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        raise NotImplementedError

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        return self.call(call)

    def run(self, steps: Steps[Result]) -> Result:
        try:
            return run(self, steps)
        except LockUnavailable as error:
            for emission in self.unavailable(error):
                emission.do(self)
            raise

    async def arun(self, steps: Steps[Result]) -> Result:
        try:
            return await arun(self, steps)
        except LockUnavailable as error:
            for emission in self.unavailable(error):
                await emission.ado(self)
            raise

    def unavailable(self, error: LockUnavailable) -> tuple[Emit, ...]:
        """Send ``lock_unavailable`` as ``emit`` does."""
        return self.emit(signals.lock_unavailable, error.name, error=error)

    def emit(self, signal: signals.LockSignal, name: str, **facts: Any) -> tuple[Emit, ...]:
        """Send a signal about a lock: at once, or by the step to take if a receiver may block."""
        arguments = {"sender": type(self), "using": self.alias, "name": name, **facts}
        if signal.may_block:
            return (Emit(signal, arguments),)
        for receiver in signal.quick:  # a further call would take as long as the receiver
            try:
                receiver(signal=signal, **arguments)
            except Exception:
                logger.exception("The receiver %r of a signal failed", receiver)
        return ()
