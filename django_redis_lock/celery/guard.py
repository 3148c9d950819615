"""The guard of one task: its options, and how it gets between Celery and the task."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NoReturn, TypeAlias

from celery import Task
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.celery.conflicts import TaskAlreadyRunning
from django_redis_lock.celery.keys import AsModels, KeyMaker, check_key, with_own_defaults
from django_redis_lock.celery.message import due_as_broker_can
from django_redis_lock.celery.options import (
    Options,
    make_options,
    project_defaults,
    refuse_idle,
)
from django_redis_lock.celery.private import argument_models
from django_redis_lock.celery.running import Run, current_lock
from django_redis_lock.celery.sending import Sending
from django_redis_lock.support.functions import finished, is_async, is_generator

GUARD = "single_instance_guard"
"""The attribute of a decorated function and of a guarded task that holds its guard."""
AnyTask: TypeAlias = "Task[Any, Any]"
WAYS_TO_RUN = ("Strategy", "__trace__")
"""The attributes of a task by which workers handle its messages and run it."""

POSITIONAL = ("task_id", "producer", "link", "link_error", "shadow")
"""The arguments of ``apply_async`` that may be given by position after those of the task."""


class Guard:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        check_key(given.get("key"), given.get("unique_on"))
        self._options: Options | None = None
        self._defaults: Mapping[str, Any] = {}
        self._key_makers: dict[type, KeyMaker] = {}
        self._signatures: dict[Callable[..., Any], inspect.Signature] = {}
        with contextlib.suppress(ImproperlyConfigured):  # reported by the checks
            self.options  # noqa: B018 - to check them

    @property
    def options(self) -> Options:
        """The options of its calls.

        Raises ``TypeError``, ``ValueError``, and ``ImproperlyConfigured`` for the setting.
        """
        defaults = project_defaults()
        if self._options is None or self._defaults is not defaults:
            options = make_options(defaults, self._given)
            refuse_idle(self._given, options)
            self._options, self._defaults = options, defaults
        return self._options

    def key(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._key_maker(type(task))(task.name, args, kwargs)

    def _key_maker(self, cls: type[AnyTask]) -> KeyMaker:
        if cls not in self._key_makers:  # a subclass may have a run() of its own
            as_models = argument_models(cls.run, is_static(cls))
            self._key_makers[cls] = self.make_keys(cls.run, self._signature(cls), as_models)
        return self._key_makers[cls]

    def _signature(self, cls: type[AnyTask]) -> inspect.Signature:
        """Return the signature of calls, its defaults as they were before any body ran.

        It is that of the function, if Celery made the class of one.
        """
        run = vars(cls).get("__wrapped__") or inspect.getattr_static(cls, "run")
        if run not in self._signatures:
            signature = inspect.signature(run)
            if not isinstance(run, staticmethod):
                own = list(signature.parameters.values())[1:]
                signature = signature.replace(parameters=own)
            self._signatures[run] = with_own_defaults(signature)
        return self._signatures[run]

    @property
    def installed(self) -> bool:
        return bool(self._key_makers)

    def make_keys(
        self,
        run: Callable[..., Any],
        signature: inspect.Signature,
        as_models: AsModels | None = None,
    ) -> KeyMaker:
        """Return what makes the keys of calls. Raises ``TypeError`` or ``ValueError``."""
        if is_async(run) or is_generator(run):
            raise TypeError(
                f"{run!r} is a coroutine or generator function, whose body runs after the call; "
                f"take the lock inside it, with a with statement."
            )
        return KeyMaker(self._given.get("key"), self._given.get("unique_on"), signature, as_models)

    def install(self, cls: type[AnyTask]) -> None:
        """Guard the tasks of a class: their calls, by workers or directly, and their sending.

        The guard of a call is outermost, so ``autoretry_for`` does not take a conflict for a
        failure. The guard of sending is innermost: if a base class delays the sending until a
        transaction has ended, the place in the queue is taken then.

        Once more for a guarded class, it guards what has replaced the guard since.
        """
        _refuse_other_ways_to_run(cls)
        installed, sender = getattr(cls, GUARD, None), cls
        if installed is None:
            self._key_maker(cls)
            sender = _beneath_overrides(cls)
            on_bound = inspect.getattr_static(cls, "on_bound")

            def guarded_on_bound(bound: type[AnyTask], app: Any) -> None:
                """Guard what the annotations of the app have replaced."""
                self.install(bound)
                on_bound.__get__(None, bound)(app)

            cls.on_bound = classmethod(guarded_on_bound)  # type: ignore[assignment]
            setattr(cls, GUARD, self)
            if not hasattr(cls, "lock"):
                cls.lock = property(current_lock)  # type: ignore[attr-defined]
        elif installed is not self:
            raise TypeError(f"{cls!r} is already a single_instance_task.")
        throws = cls.throws if isinstance(cls.throws, list | tuple) else (cls.throws,)
        if TaskAlreadyRunning not in throws:
            cls.throws = (*throws, TaskAlreadyRunning)  # so it is not logged as a failure
        if not _is_guarded(cls.__call__):
            cls.__call__ = _guarded_call(self, cls)  # type: ignore[method-assign]
        if not any(_is_guarded(vars(base).get("apply_async")) for base in cls.__mro__):
            method = _guarded_apply_async(self, sender)
            del method.__wrapped__  # type: ignore[attr-defined] # annotations go around the guard
            sender.apply_async = method  # type: ignore[method-assign]


def is_static(cls: type[AnyTask]) -> bool:
    """Whether the ``run`` of a task is given no ``self``."""
    return isinstance(inspect.getattr_static(cls, "run"), staticmethod)


def _refuse_other_ways_to_run(cls: type[AnyTask]) -> None:
    """Raise ``TypeError`` for a task that workers run without calling it.

    Celery has registered a task that it made of a function, so that raises at each use as well.
    """
    other = next((name for name in WAYS_TO_RUN if getattr(cls, name) != getattr(Task, name)), None)
    if other is None:
        return
    base = next(base for base in cls.__mro__ if other in vars(base))
    why = (
        f"Task {cls.name} has a {other} of its own, from {base.__module__}.{base.__qualname__}, by "
        f"which workers run it without calling it, so single_instance_task can't guard it. Take "
        f"the lock inside the task, with django_redis_lock.lock() in a with statement; or use "
        f"another base class."
    )

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(why)

    if "__wrapped__" in vars(cls):  # Celery made it of a function
        cls.__call__ = cls.apply_async = refused  # type: ignore[method-assign]
    refused()


def _is_guarded(method: Any) -> bool:
    """Whether a method is a guard's, or wraps one."""
    while method is not None and not hasattr(method, GUARD):
        method = getattr(method, "__wrapped__", None)
    return method is not None


def _beneath_overrides(cls: type[AnyTask]) -> type[AnyTask]:
    """Return the class whose ``apply_async`` to replace: beneath all overrides of Celery's.

    That is the class itself if there are none, and otherwise one inserted for it alone. A class
    that Celery made of a function has only what annotations gave it, which may know nothing of
    classes beneath.
    """
    overrides = [base for base in cls.__mro__ if "apply_async" in base.__dict__]
    if overrides == [Task] or (overrides == [cls, Task] and "__wrapped__" in vars(cls)):
        return cls
    following = cls.__mro__[cls.__mro__.index(overrides[-2]) + 1]
    beneath = type(f"Guarded{following.__name__}", (following,), {"abstract": True})
    bases = [base for base in cls.__bases__ if base is not following]
    cls.__bases__ = (*bases, beneath)
    return beneath


def _guarded_call(guard: Guard, cls: type[AnyTask]) -> Callable[..., Any]:
    call = _unguarded(cls, "__call__")
    inherited = cls.__call__ is Task.__call__

    @wraps(cls.__call__)
    def guarded_call(task: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = Run(guard.options, guard.key, task, (args, kwargs))
        if inherited and run.task_id is not None:
            # Celery bypasses its own method as well, which is for direct calls: in 5.4 it would
            # hide the request of an eager call from the task.
            return run.carry_out(lambda: finished(task.run, task.run(*args, **kwargs)))
        return run.carry_out(lambda: finished(task.run, call(task, *args, **kwargs)))

    setattr(guarded_call, GUARD, guard)
    return guarded_call


def _guarded_apply_async(guard: Guard, cls: type[AnyTask]) -> Callable[..., Any]:
    apply_async = _unguarded(cls, "apply_async")

    @wraps(cls.apply_async)
    def guarded_apply_async(
        task: Any, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any
    ) -> Any:
        names = POSITIONAL[: len(positional)]
        message = {**dict(zip(names, positional, strict=True)), **options}
        if "once" in options:
            raise TypeError("once= is an argument of celery-once, which does not guard this task.")
        message = due_as_broker_can(task, args, kwargs, message)
        arguments = tuple(args or ()), dict(kwargs or {})
        publish = partial(apply_async, task, args, kwargs)
        return Sending(guard.options, task, arguments, message, publish).send(guard.key)

    setattr(guarded_apply_async, GUARD, guard)
    return guarded_apply_async


def _unguarded(cls: type[AnyTask], name: str) -> Callable[..., Any]:
    """Return the current method of a class; an inherited one is looked up when it is called.

    A worker replaces ``Task.__call__`` after the tasks are made.
    """
    own: Callable[..., Any] | None = cls.__dict__.get(name)
    if own is not None:
        return own
    return lambda task, *args, **kwargs: getattr(super(cls, task), name)(*args, **kwargs)
