"""What a decorated task was given: its options over those of the setting, and what these make of a
call: its key, its turn, and with whom it shares its lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias, TypedDict, get_args
from urllib.parse import quote

from celery import Task
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_redis_lock.celery import private
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import DEFAULT, Default, OnUnavailable, Sharing
from django_redis_lock.support.functions import is_async, is_generator
from django_redis_lock.tasks import keys
from django_redis_lock.tasks.keys import Key, KeyMaker

AnyTask: TypeAlias = "Task[Any, Any]"

Scope = Literal["run", "queue", "queue_and_run"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

QueuePolicy = Literal["skip", "raise", "supersede"]  # for a duplicate when it is sent
RunPolicy = Literal["skip", "raise", "wait", "retry", "park"]  # and when it is about to run
Beyond = Literal["raise", "skip", "retry"]
ON_CONFLICT = {"queue": get_args(QueuePolicy), "run": get_args(RunPolicy)}

SETTING = "SINGLE_INSTANCE_TASK"
GUARD = "single_instance_guard"  # the attribute of a decorated function and of a guarded task

Handler = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Policies(TypedDict, total=False):
    queue: QueuePolicy | Handler
    run: RunPolicy | Handler


OnConflict = QueuePolicy | RunPolicy | Handler | Policies


@dataclass(eq=False)
class Options:
    """The options of one guard. Raises ``TypeError`` or ``ValueError`` for one that is wrong."""

    timeout: float | Default | None = DEFAULT
    _: KW_ONLY
    scope: Scope = "run"
    key: Key = None
    unique_on: keys.UniqueOn = None
    on_conflict: OnConflict = "skip"
    blocking_timeout: float | Default | None = DEFAULT
    countdown: float = 1.0
    max_retries: int | None = None
    at_least_for: float = 0.0
    queue_timeout: float = 3600.0
    supersede_for: float = 10.0
    on_unavailable: OnUnavailable = "raise"
    using: str = "default"
    concurrency: int | Callable[..., int] = 1
    turns: Key = None
    queue_limit: int | None = None
    beyond: Beyond = "raise"

    def __post_init__(self) -> None:
        arguments.check_choice("scope", self.scope, SCOPES)
        arguments.check_choice("on_unavailable", self.on_unavailable, get_args(OnUnavailable))
        arguments.check_choice("beyond", self.beyond, get_args(Beyond))
        arguments.check_types(self.using)
        on_queue, on_run = _policies(self.scope, self.on_conflict)
        self.on_queue_conflict, self.on_run_conflict = on_queue, on_run
        self.queue_policy = "callable" if callable(on_queue) else on_queue
        self.run_policy = "callable" if callable(on_run) else on_run
        if not isinstance(self.timeout, Default):
            self.timeout = arguments.check_timeout(self.timeout)
        if not isinstance(self.blocking_timeout, Default):
            self.blocking_timeout = arguments.check_wait(self.blocking_timeout)
        self.countdown = _seconds("countdown", self.countdown, least=0.1)
        if self.max_retries is not None:
            arguments.check_number("max_retries", self.max_retries, 0)
        self.at_least_for = _seconds("at_least_for", self.at_least_for)
        self.queue_timeout = _seconds("queue_timeout", self.queue_timeout, least=0.001)
        self.supersede_for = _seconds("supersede_for", self.supersede_for)
        if self.queue_limit is not None:
            arguments.check_number("queue_limit", self.queue_limit, 1)
        if not callable(self.concurrency):
            arguments.check_number("concurrency", self.concurrency, 1, arguments.MOST_AT_ONCE)


NAMES = tuple(Options.__dataclass_fields__)


def make_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
    """Return the given options over the defaults. Raises ``ValueError`` for one without effect."""
    merged = {**defaults, **given}
    if "on_conflict" in given and "blocking_timeout" not in given:
        merged.pop("blocking_timeout", None)  # that of the default policy
    for name in merged:
        if name not in NAMES:
            raise TypeError(f"{name!r} is not an option. Options: {', '.join(NAMES)}.")
    options = Options(**merged)
    _reject_unused_options(given, options)
    return options


def _reject_unused_options(given: Mapping[str, Any], options: Options) -> None:
    in_queue = "scope='queue' or 'queue_and_run'"
    policies = given.get("on_conflict")
    if options.scope == "run" and isinstance(policies, Mapping) and "queue" in policies:
        raise ValueError(
            f"on_conflict={policies!r} has a policy for sending, which requires {in_queue}: "
            f"omit 'queue'."
        )
    supersede, parks = options.on_queue_conflict == "supersede", options.run_policy == "park"
    retry = options.run_policy == "retry" or (parks and options.beyond == "retry")
    other_scope = "a scope other than 'queue', where only one message of a key waits"
    for name, has_effect, needed in (
        ("queue_timeout", options.scope != "run" or parks, f"{in_queue}, or on_conflict='park'"),
        ("countdown", retry or options.run_policy == "wait", "on_conflict='retry' or 'wait'"),
        ("blocking_timeout", options.run_policy == "wait", "on_conflict='wait'"),
        ("max_retries", retry, "on_conflict='retry'"),
        ("supersede_for", supersede, "on_conflict='supersede'"),
        ("turns", options.scope != "queue", other_scope),
        ("turns", parks, "on_conflict='park'"),
        ("queue_limit", parks, "on_conflict='park'"),
        ("beyond", parks and options.queue_limit is not None, "a queue_limit"),
    ):
        if not has_effect and given.get(name) is not None:
            raise ValueError(f"{name}={given[name]!r} requires {needed}: omit it.")


def _policies(scope: Scope, given: Any) -> tuple[QueuePolicy | Handler, RunPolicy | Handler]:
    """Return the policy for a duplicate that is sent, and for one that is about to run."""
    default_run = "retry" if scope == "queue" else "skip"  # as the one message that may wait
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - set(ON_CONFLICT)):
            raise ValueError(f"on_conflict has no key {unknown[0]!r}: use 'queue' and 'run'.")
        on_queue, on_run = given.get("queue", "skip"), given.get("run", default_run)
    elif callable(given):
        on_queue = on_run = given
    elif given == "supersede" or scope == "queue":
        on_queue, on_run = given, default_run
    else:
        both = scope == "queue_and_run" and given in ON_CONFLICT["queue"]
        on_queue, on_run = given if both else "skip", given
    for moment, policy in (("queue", on_queue), ("run", on_run)):
        if not callable(policy):
            arguments.check_choice(f"on_conflict[{moment!r}]", policy, ON_CONFLICT[moment])
    if on_queue == "supersede" and scope != "queue":
        raise ValueError("on_conflict='supersede' requires scope='queue'.")
    return on_queue, on_run


def _seconds(name: str, value: Any, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} must be a number of seconds.")
    if not least <= value <= arguments.LONGEST_LEASE:
        raise ValueError(f"{name}={value!r} must be a number of seconds, at least {least:g}.")
    return float(value)


_NONE: Mapping[str, Any] = {}
_checked: list[Mapping[str, Any]] = []


def project_defaults() -> Mapping[str, Any]:
    """Return ``SINGLE_INSTANCE_TASK``, the same object until it changes, if it is valid.

    Raises ``ImproperlyConfigured``.
    """
    if _checked:
        return _checked[0]
    if not (settings.configured or os.environ.get(ENVIRONMENT_VARIABLE)):
        return _NONE  # in a program without settings
    given = getattr(settings, SETTING, _NONE)
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {given!r}.")
    for name in ("key", "unique_on", "turns"):  # those about a task's arguments
        if name in given:
            raise ImproperlyConfigured(
                f"{SETTING} can't have {name!r}, which depends on the task: set it at the task."
            )
    try:
        make_options(given, {})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from None
    _checked.append(dict(given))
    return _checked[0]


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        _checked.clear()


class Guard:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        keys.check_key(given.get("key"), given.get("unique_on"))
        keys.check_key(given.get("turns"), None, "turns")
        self._options: Options | None = None
        self._defaults: Mapping[str, Any] = {}
        self.key_makers: dict[type, tuple[KeyMaker, KeyMaker]] = {}
        """Of keys and turns, for the classes that it guards; each may have a ``run`` of its own."""
        with contextlib.suppress(ImproperlyConfigured):  # reported by the checks
            self.options  # noqa: B018 - to check them

    @property
    def options(self) -> Options:
        """Raises ``TypeError``, ``ValueError``, and ``ImproperlyConfigured`` for the setting."""
        defaults = project_defaults()
        if self._options is None or self._defaults is not defaults:
            self._options, self._defaults = make_options(defaults, self._given), defaults
        return self._options

    def key(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.makers(type(task))[0](task.name, args, kwargs)

    def turn(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return which backlog of its lock the message of a call waits in, in printable ASCII."""
        if self._given.get("turns") is None:
            return "="
        text = self.makers(type(task))[1](task.name, args, kwargs)
        made = "=" + quote(text, safe="", errors="surrogatepass")
        if len(made) <= keys.MAX_KEY_LENGTH:
            return made
        digest = "#" + hashlib.sha256(made.encode()).hexdigest()[:32]
        return made[: keys.MAX_KEY_LENGTH - len(digest)] + digest

    def sharing(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sharing:
        """Return how a call, whose key was made, shares its lock with others that may run."""
        number = self.options.concurrency
        if callable(number):
            try:
                number = number(**self.key_makers[type(task)][0].named(args, kwargs))
            except TypeError as error:
                raise TypeError(
                    f"The concurrency function of task {task.name} gets all arguments by name: "
                    f"add **_ to its parameters. {error}"
                ) from error
        what, most = f"Task {task.name}: concurrency", arguments.MOST_AT_ONCE
        limit = arguments.check_number(what, number, 0, most)
        return Sharing(shared=True, limit=limit)

    def makers(self, cls: type[AnyTask]) -> tuple[KeyMaker, KeyMaker]:
        if cls in self.key_makers:
            return self.key_makers[cls]
        # That of the function, if Celery made the class of one.
        run = vars(cls).get("__wrapped__") or inspect.getattr_static(cls, "run")
        signature, static = inspect.signature(run), isinstance(run, staticmethod)
        if not static:
            signature = signature.replace(parameters=[*signature.parameters.values()][1:])
        as_models = private.argument_models(cls.run, static)
        return self.key_makers.setdefault(cls, self.make_makers(cls.run, signature, as_models))

    def make_makers(
        self, run: Handler, signature: inspect.Signature, as_models: keys.AsModels | None = None
    ) -> tuple[KeyMaker, KeyMaker]:
        """Return what makes the keys and turns of calls. Raises ``TypeError`` or ``ValueError``."""
        if is_async(run) or is_generator(run):
            raise TypeError(
                f"{run!r} is a coroutine or generator function, whose body runs after the call: "
                f"acquire the lock inside it, with a with statement."
            )
        given = self._given.get
        turns = KeyMaker(given("turns"), None, signature, as_models, "turns")
        return KeyMaker(given("key"), given("unique_on"), signature, as_models), turns
