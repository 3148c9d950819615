"""What ``single_instance_task`` can be told, checked when a task is defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from django_redis_lock.support.arguments import (
    DEFAULT,
    LONGEST,
    Default,
    check_metadata,
    check_timeout,
    check_wait,
)

Scope = Literal["run", "queue", "queue_and_run"]
RUN: Literal["run"] = "run"
QUEUE: Literal["queue"] = "queue"
QUEUE_AND_RUN: Literal["queue_and_run"] = "queue_and_run"
SCOPES = (RUN, QUEUE, QUEUE_AND_RUN)

QueuePolicy = Literal["skip", "raise", "supersede"]
RunPolicy = Literal["skip", "ignore", "raise", "wait", "retry"]
SKIP: Literal["skip"] = "skip"
IGNORE: Literal["ignore"] = "ignore"
RAISE: Literal["raise"] = "raise"
WAIT: Literal["wait"] = "wait"
RETRY: Literal["retry"] = "retry"
SUPERSEDE: Literal["supersede"] = "supersede"

ON_CONFLICT = {
    QUEUE: (SKIP, RAISE, SUPERSEDE),
    RUN: (SKIP, IGNORE, RAISE, WAIT, RETRY),
}
"""What can be done about a duplicate when it is sent, and when it would run."""

OWN_METADATA = 128
"""Bytes of a holder's metadata that are kept free for what the guard adds."""

Handler = Callable[..., Any]
OnUnavailable = Literal["raise", "run"]


class Policies(TypedDict, total=False):
    """What to do about a duplicate that is sent, and about one that would run."""

    queue: QueuePolicy | Handler
    run: RunPolicy | Handler


OnConflict = QueuePolicy | RunPolicy | Handler | Policies


@dataclass(frozen=True)
class Options:
    """The options of one guard, each of them valid by itself and with the others."""

    timeout: float | Default | None
    scope: str
    on_queue_conflict: str | Handler
    on_run_conflict: str | Handler
    blocking_timeout: float | None
    countdown: float
    max_retries: int | None
    at_least_for: float
    queue_timeout: float
    on_unavailable: str
    using: str
    metadata: dict[str, str]
    concurrency: int


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several layers of options say together, the last of them first heard.

    What belongs to something that a layer says anew goes with it.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if "on_conflict" in layer:
            merged.pop("blocking_timeout", None)
        if "key" in layer or "unique_on" in layer:
            merged = {name: merged[name] for name in merged if name not in ("key", "unique_on")}
        merged.update(layer)
    return merged


def make_options(
    *,
    timeout: float | Default | None = DEFAULT,
    scope: Scope = RUN,
    on_conflict: OnConflict = SKIP,
    blocking_timeout: float | None = None,
    countdown: float = 1.0,
    max_retries: int | None = None,
    at_least_for: float = 0.0,
    queue_timeout: float = 3600.0,
    on_unavailable: OnUnavailable = "raise",
    using: str = "default",
    metadata: Mapping[str, str] | None = None,
    concurrency: int = 1,
    **unknown: Any,
) -> Options:
    """Return the options. Raises ``TypeError`` or ``ValueError`` naming the one that is wrong."""
    if unknown:
        raise TypeError(f"{next(iter(unknown))!r} is no option; there are {_listed(NAMES)}.")
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r} is unknown; there are {_listed(SCOPES)}.")
    if on_unavailable not in ("raise", "run"):
        raise ValueError(f"on_unavailable={on_unavailable!r} is unknown; it is 'raise' or 'run'.")
    on_queue, on_run = _policies(scope, on_conflict)
    if blocking_timeout is not None and on_run != WAIT:
        raise ValueError(
            f"blocking_timeout={blocking_timeout!r} has a meaning with on_conflict='wait' only."
        )
    if not isinstance(using, str):
        raise TypeError(f"using={using!r} must be an alias of LOCKS.")
    return Options(
        timeout=timeout if isinstance(timeout, Default) else check_timeout(timeout),
        scope=scope,
        on_queue_conflict=on_queue,
        on_run_conflict=on_run,
        blocking_timeout=check_wait(blocking_timeout),
        countdown=_seconds("countdown", countdown, least=0.1),
        max_retries=None if max_retries is None else _whole("max_retries", max_retries, 0),
        at_least_for=_seconds("at_least_for", at_least_for),
        queue_timeout=_seconds("queue_timeout", queue_timeout, least=0.001),
        on_unavailable=on_unavailable,
        using=using,
        metadata=check_metadata(metadata or {}, room=OWN_METADATA),
        concurrency=_whole("concurrency", concurrency, 1),
    )


NAMES = ("key", "unique_on", *(make_options.__kwdefaults__ or {}))


def _policies(scope: str, given: Any) -> tuple[str | Handler, str | Handler]:
    """Return what to do about a duplicate that is sent, and about one that would run.

    A run of scope ``queue`` that finds another running goes back to the queue by default, for
    it is the one that may wait.
    """
    default_run = RETRY if scope == QUEUE else SKIP
    on_queue: str | Handler
    on_run: str | Handler
    if given == SUPERSEDE and scope != QUEUE:
        raise _no_place_to_take()
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(ON_CONFLICT))
        if unknown:
            raise ValueError(f"on_conflict has no {unknown[0]!r}; it can have 'queue' and 'run'.")
        on_queue, on_run = given.get(QUEUE, SKIP), given.get(RUN, default_run)
    elif callable(given):
        on_queue = on_run = given
    elif scope == QUEUE:
        on_queue, on_run = given, default_run
    elif scope == RUN:
        on_queue, on_run = SKIP, given
    else:
        on_queue = given if given in ON_CONFLICT[QUEUE] else SKIP
        on_run = given if given in ON_CONFLICT[RUN] else SKIP
        if given not in (on_queue, on_run):
            _check_policy(RUN, given)
    _check_policy(QUEUE, on_queue)
    _check_policy(RUN, on_run)
    if on_queue == SUPERSEDE and scope != QUEUE:
        raise _no_place_to_take()
    return on_queue, on_run


def _no_place_to_take() -> ValueError:
    return ValueError("on_conflict='supersede' needs scope='queue', where one task waits.")


def _check_policy(moment: str, policy: str | Handler) -> None:
    if not callable(policy) and policy not in ON_CONFLICT[moment]:
        when = "sent" if moment == QUEUE else "about to run"
        raise ValueError(
            f"on_conflict={policy!r} can't be done about a task that is {when}; "
            f"there are {_listed(ON_CONFLICT[moment])}, or a callable."
        )


def _seconds(name: str, value: Any, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} must be a number of seconds.")
    if not least <= value <= LONGEST:
        raise ValueError(f"{name}={value!r} must be a number of seconds, at least {least:g}.")
    return float(value)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be a whole number.")
    if value < least:
        raise ValueError(f"{name}={value!r} must be at least {least}.")
    return value


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(repr, values))
