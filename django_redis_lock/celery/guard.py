"""The guard of one task: what it was told, and how it gets between Celery and the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Task

from django_redis_lock.calls import finished, is_async, is_generator
from django_redis_lock.celery.keys import Key, KeyMaker, UniqueOn, check_key
from django_redis_lock.celery.options import Options
from django_redis_lock.celery.running import Run, current_lock
from django_redis_lock.celery.sending import Call, send

GUARD = "single_instance_guard"
"""The attribute of a marked function and of a guarded task that holds its guard."""


class Guard:
    """What one ``single_instance_task`` was told, for the task that it guards."""

    def __init__(self, options: Options, key: Key, unique_on: UniqueOn) -> None:
        check_key(key, unique_on)
        self.options = options
        self._key = key
        self._unique_on = unique_on
        self._key_makers: dict[type, KeyMaker] = {}

    def mark(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function to make a task of; once Celery does, the task is guarded.

        Raises ``TypeError`` or ``ValueError`` for a function that can't be guarded in this way.
        """
        if hasattr(function, GUARD):
            raise TypeError(f"{function!r} is a single_instance_task already.")
        signature = inspect.signature(function)
        self._key_maker_for(function, signature)

        @wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if not self._key_makers:
                raise TypeError(
                    f"{function.__qualname__} is decorated with single_instance_task, but is no "
                    f"Celery task, so nothing would guard this call. Add @shared_task or "
                    f"@app.task; for a plain function there is django_redis_lock.lock()."
                )
            return function(*args, **kwargs)

        marked.__signature__ = signature  # type: ignore[attr-defined] # Celery checks calls by it
        setattr(marked, GUARD, self)
        return marked

    def install(self, cls: type[Task]) -> None:
        """Guard the tasks of a class: their calls, by workers or directly, and their sending.

        The guard goes around all that Celery and base classes do in a call, so a conflict is not
        taken for a failure that ``autoretry_for`` retries.
        """
        installed = getattr(cls, GUARD, None)
        if installed is self:
            return
        if installed is not None:
            raise TypeError(f"{cls!r} is a single_instance_task already.")
        self._key_makers[cls] = self._key_maker_for(cls.run, _signature(cls))
        members: dict[str, Any] = {
            GUARD: self,
            "__call__": _guarded_call(self, cls),
            "apply_async": _guarded_apply_async(self, cls),
        }
        if not hasattr(cls, "lock"):
            members["lock"] = property(current_lock, doc=current_lock.__doc__)
        for name, member in members.items():
            setattr(cls, name, member)

    def key(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the name of the lock for a call of a task. Raises ``TypeError``."""
        cls = type(task)
        if cls not in self._key_makers:  # a subclass, which may have a run of its own
            self._key_makers[cls] = self._key_maker_for(cls.run, _signature(cls))
        return self._key_makers[cls](task.name, args, kwargs)

    def _key_maker_for(self, run: Callable[..., Any], signature: inspect.Signature) -> KeyMaker:
        if is_async(run) or is_generator(run):
            raise TypeError(
                f"{run!r} is a coroutine or generator function, whose body runs after the call; "
                f"take the lock inside of it with a with statement."
            )
        return KeyMaker(self._key, self._unique_on, signature)


def _guarded_call(guard: Guard, cls: type[Task]) -> Callable[..., Any]:
    call = _unguarded(cls, "__call__")
    inherited = cls.__call__ is Task.__call__

    @wraps(cls.__call__)
    def guarded_call(task: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = Run(guard.options, guard.key, task, args, kwargs)
        if inherited and run.task_id is not None:
            # Celery skips its own method as well, which is for direct calls: in 5.4 it would hide
            # the request of an eager one from the task.
            return run.carry_out(lambda: finished(task.run, task.run(*args, **kwargs)))
        return run.carry_out(lambda: finished(task.run, call(task, *args, **kwargs)))

    return guarded_call


def _guarded_apply_async(guard: Guard, cls: type[Task]) -> Callable[..., Any]:
    apply_async = _unguarded(cls, "apply_async")

    @wraps(cls.apply_async)
    def guarded_apply_async(  # noqa: PLR0917 - what Celery's takes
        task: Any,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        given = {"task_id": task_id, "producer": producer, "link": link}
        message = {**given, "link_error": link_error, "shadow": shadow, **options}

        def publish(**message: Any) -> Any:
            return apply_async(task, args, kwargs, **message)

        sending = Call(task, tuple(args or ()), dict(kwargs or {}), message, publish)
        return send(guard.options, guard.key, sending)

    return guarded_apply_async


def _unguarded(cls: type[Task], name: str) -> Callable[..., Any]:
    """Return the method that a class has now; one that it inherits as it is when called.

    A worker replaces ``Task.__call__`` after the tasks are made.
    """
    own: Callable[..., Any] | None = cls.__dict__.get(name)
    if own is not None:
        return own
    return lambda task, *args, **kwargs: getattr(super(cls, task), name)(*args, **kwargs)


def _signature(cls: type[Task]) -> inspect.Signature:
    """Return what a task takes, without the task itself."""
    signature = inspect.signature(cls.run)
    if isinstance(inspect.getattr_static(cls, "run"), staticmethod):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _bind(cls: type[Task], app: Any) -> Any:
    """Guard every task that is made of a marked function when it gets its app."""
    guard = getattr(cls.run, GUARD, None)
    if guard is not None:
        guard.install(cls)
    return _original_bind(cls, app)


# The one place that all tasks pass on their way into the registry of an app, whenever and however
# they are made.
_original_bind = Task.bind.__func__
Task.bind = classmethod(_bind)
