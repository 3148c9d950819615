"""``@single_instance_task``, and how its guard gets between Celery and a task.

"Where the guard sits" in ``docs/explanation/how-tasks-are-guarded.md`` explains it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload

from celery import Task

from django_redis_lock.celery import private
from django_redis_lock.celery.options import GUARD, AnyTask, Guard, Options
from django_redis_lock.celery.policies import carry_out
from django_redis_lock.celery.run import Run, current_lock, runs
from django_redis_lock.celery.sending import Sending
from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.tasks import is_django_task
from django_redis_lock.tasks.conflicts import TaskAlreadyRunning, logger
from django_redis_lock.tasks.keys import refuse_by_position

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Given = ParamSpec("Given")

STRATEGY = "django_redis_lock.celery.receiving:strategy"
WAYS_TO_RUN = {"Strategy": (Task.Strategy, STRATEGY), "__trace__": (Task.__trace__,)}
"""The attributes by which workers handle a task's messages and run it, and their usual values."""

OTHER_GUARDS = ("celery_once", "celery_singleton")  # packages with locks of their own


def install(guard: Guard, cls: type[AnyTask]) -> None:
    """Guard the tasks of a class: their calls, by workers or directly, and their sending.

    Once more for a guarded class, it guards what has replaced the guard since.
    """
    _refuse_unguardable(cls)
    installed, sender = getattr(cls, GUARD, None), cls
    guard.makers(cls)
    if installed is None:
        sender = _beneath_overrides(cls)
        on_bound = inspect.getattr_static(cls, "on_bound")

        def guarded_on_bound(bound: type[AnyTask], app: Any) -> None:
            install(guard, bound)  # what the annotations of the app have replaced
            on_bound.__get__(None, bound)(app)

        cls.on_bound = classmethod(guarded_on_bound)  # type: ignore[assignment]
        setattr(cls, GUARD, guard)
        if not hasattr(cls, "lock"):
            cls.lock = property(current_lock)  # type: ignore[attr-defined]
    elif installed is not guard:
        raise TypeError(f"{cls!r} is already a single_instance_task.")
    throws = cls.throws if isinstance(cls.throws, list | tuple) else (cls.throws,)
    if TaskAlreadyRunning not in throws:
        cls.throws = (*throws, TaskAlreadyRunning)  # so it is not logged as a failure
    cls.Strategy = STRATEGY
    # The guard of a call is outermost: autoretry_for would take a conflict for a failure.
    if not _is_guarded(cls.__call__):
        cls.__call__ = _guarded_call(guard, cls)  # type: ignore[method-assign]
    if not any(_is_guarded(vars(base).get("apply_async")) for base in cls.__mro__):
        # That of sending is innermost, because a base class may delay it.
        method = _guarded_apply_async(guard, sender)
        del method.__wrapped__  # type: ignore[attr-defined] # annotations go around the guard
        sender.apply_async = method  # type: ignore[method-assign]


def _refuse_unguardable(cls: type[AnyTask]) -> None:
    """Raise ``TypeError`` for a task that has another guard, or that workers run without a call."""
    own = next((way for way in WAYS_TO_RUN if getattr(cls, way) not in WAYS_TO_RUN[way]), None)
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in OTHER_GUARDS or own in vars(base):
            break
    else:
        return
    so = "which can't be combined with single_instance_task. Remove one of the two."
    if package not in OTHER_GUARDS:
        so = (
            "by which workers run it without calling it, so single_instance_task can't guard it. "
            "Acquire the lock inside the task, with django_redis_lock.lock() in a with statement; "
            "or use another base class."
        )
    what = f"a {own or 'guard'} of its own, from {base.__module__}.{base.__qualname__}"
    why = f"Task {cls.name} has {what}, {so}"

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(why)

    if "__wrapped__" in vars(cls):  # Celery made it of a function, and has registered it
        cls.__call__ = cls.apply_async = refused  # type: ignore[method-assign]
    refused()


def _is_guarded(method: Any) -> bool:
    """Whether a method is a guard's, or wraps one."""
    return hasattr(inspect.unwrap(method, stop=lambda layer: hasattr(layer, GUARD)), GUARD)


def _beneath_overrides(cls: type[AnyTask]) -> type[AnyTask]:
    """Return the class whose ``apply_async`` to replace: beneath all overrides of Celery's."""
    overrides = [base for base in cls.__mro__ if "apply_async" in base.__dict__]
    if overrides == [Task] or (overrides == [cls, Task] and "__wrapped__" in vars(cls)):
        return cls  # it has none but an annotation
    following = cls.__mro__[cls.__mro__.index(overrides[-2]) + 1]
    beneath = type(f"Guarded{following.__name__}", (following,), {"abstract": True})
    cls.__bases__ = (*(base for base in cls.__bases__ if base is not following), beneath)
    return beneath


def _guarded_call(guard: Guard, cls: type[AnyTask]) -> Callable[..., Any]:
    call = _unguarded(cls, "__call__")
    inherited = cls.__call__ is Task.__call__

    @wraps(cls.__call__)
    def guarded_call(task: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = Run(guard, task, (args, kwargs))
        # As Celery does: in 5.4 its own method would hide the request of an eager call.
        body = task.run if inherited and run.task_id is not None else partial(call, task)
        return carry_out(run, body)

    setattr(guarded_call, GUARD, guard)
    return guarded_call


def _guarded_apply_async(guard: Guard, cls: type[AnyTask]) -> Callable[..., Any]:
    apply_async = _unguarded(cls, "apply_async")

    @wraps(cls.apply_async)
    def guarded_apply_async(
        task: Any, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any
    ) -> Any:
        names = ("task_id", "producer", "link", "link_error", "shadow")[: len(positional)]
        message = {**dict(zip(names, positional, strict=True)), **options}
        if "once" in options:
            raise TypeError(
                "once= belongs to celery-once, which does not guard this task: remove it."
            )
        arguments = tuple(args or ()), dict(kwargs or {})
        publish = partial(apply_async, task, args, kwargs)
        return Sending(guard, task, arguments, message, publish).send()

    setattr(guarded_apply_async, GUARD, guard)
    return guarded_apply_async


def _unguarded(cls: type[AnyTask], name: str) -> Callable[..., Any]:
    """Return a method of a class; an inherited one at each call, as workers replace that."""
    own: Callable[..., Any] | None = cls.__dict__.get(name)
    if own is not None:
        return own
    return lambda task, *args, **kwargs: getattr(super(cls, task), name)(*args, **kwargs)


class SingleInstanceTask(Generic[Given]):
    def __init__(self, options: Callable[Given, Options]) -> None:
        self.__signature__ = inspect.signature(options)

    @overload
    def __call__(self, target: Decorated, /) -> Decorated: ...
    @overload
    def __call__(
        self, *args: Given.args, **kwargs: Given.kwargs
    ) -> Callable[[Decorated], Decorated]: ...
    def __call__(self, *target: Any, **given: Any) -> Any:
        """Let at most one instance of a task run at a time.

        Use it above or below ``@shared_task`` or ``@app.task``, with or without parentheses. By
        default a call that finds the task running returns a ``TaskSkipped`` at once.

        ``scope``: ``run``: one instance runs at a time; ``queue``: in addition, one waits in the
        queue; ``queue_and_run``: one exists from its sending to its end, retries included.
        ``key`` or ``unique_on``: which calls exclude each other; by default all of the task. A
        template such as ``"import:{shop_id}"`` or a callable; or a list of arguments, or ``"all"``.
        ``on_conflict``: the policy for a duplicate: ``skip``, ``raise``, ``park`` (its message
        waits on the lock server), ``wait`` (in a worker, up to ``blocking_timeout`` seconds),
        ``retry`` (after ``countdown`` seconds, up to ``max_retries`` times), ``supersede`` (the
        newest arguments win), or a callable that takes a ``Conflict``; or a dict with one for when
        it is sent (``queue``) and one for when it is about to run (``run``).
        ``turns``, ``queue_limit``, ``beyond``: in which backlog a parked message waits, with how
        many others at most, and the policy beyond that.
        ``timeout``: the lease in seconds; by default it is renewed. ``at_least_for``,
        ``queue_timeout``, ``supersede_for``: seconds for which the lock is held at least, a message
        may wait, and is superseded. ``on_unavailable``: ``raise`` or ``run`` if the server can't be
        reached. ``using``: an alias of LOCKS. ``concurrency``: how many instances may run at once.

        Raises ``TypeError`` or ``ValueError`` for invalid options where the task is defined. The
        task raises ``LockUnavailable`` if the server can't be reached.
        """
        refuse_by_position(target)
        if target and (callable(target[0]) or is_django_task(target[0])):
            return _apply(Guard(given), target[0])
        if target:
            given = dict(timeout=target[0], **given)
        guard = Guard(given)
        return lambda target: _apply(guard, target)

    def current(self) -> Lock:
        """Return the lock that the running task holds, with its ``fence`` and ``ensure_held()``.

        Raises ``LockNotOwned`` outside a guarded task, and in one that runs unguarded.
        """
        if (lock := current_lock()) is None:
            raise LockNotOwned("No single_instance_task that holds its lock is running here.")
        return lock


single_instance_task = SingleInstanceTask(Options)


def _apply(guard: Guard, target: Any) -> Any:
    if is_django_task(target):
        raise TypeError(
            f"{target!r} is a task of django.tasks, which Celery's workers don't run. Import "
            f"single_instance_task from django_redis_lock.tasks instead; or make it a Celery task "
            f"with @shared_task."
        )
    if type(target) is private.PromiseProxy:  # of @app.task
        private.when_made(target, partial(install, guard))
    elif type(target) is private.Proxy:
        _guard_in_every_app(guard, private.function_of(target))
    elif isinstance(target, Task):
        install(guard, type(target))
    elif isinstance(target, type) and issubclass(target, Task):
        install(guard, target)
    elif callable(target) and not isinstance(target, type):
        return _mark(guard, target)
    else:
        raise TypeError(
            f"single_instance_task must decorate a function or Celery task, not {target!r}."
        )
    return target


def _mark(guard: Guard, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that becomes a guarded task once Celery makes a task of it."""
    signature = inspect.signature(function)
    guard.make_makers(function, signature)

    @wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        inside = runs()
        if inside and getattr(inside[-1].task, GUARD, None) is guard:
            return function(*args, **kwargs)
        if (task := _unguarded_task(guard)) is not None:
            static = isinstance(inspect.getattr_static(type(task), "run"), staticmethod)
            return task(*(args if static else args[1:]), **kwargs)  # without its self
        if not guard.key_makers:
            raise TypeError(
                f"{function.__qualname__} is decorated with single_instance_task, but not a "
                f"Celery task, so this call would not be guarded. Add @shared_task or "
                f"@app.task; for a task of django.tasks, import it from django_redis_lock.tasks; "
                f"for a plain function use django_redis_lock.lock()."
            )
        return function(*args, **kwargs)

    marked.__signature__ = signature  # type: ignore[attr-defined] # Celery checks calls by it
    return _guard_in_every_app(guard, marked)


def _guard_in_every_app(guard: Guard, function: Callable[..., Any]) -> Callable[..., Any]:
    """Guard the tasks of a function: each app has, or will have, a task object of its own."""
    if hasattr(function, GUARD):
        raise TypeError(f"{function!r} is already a single_instance_task.")
    setattr(function, GUARD, guard)
    for app in private.active_apps():
        private.annotate_first(app, _guard_class)
        if app.finalized:
            _guard_tasks(app)
    return function


def _unguarded_task(guard: Guard) -> Any:
    """Return the running task, guarded from now on, if this call has bypassed its guard."""
    task = private.running_task()
    if task is None or getattr(type(task).run, GUARD, None) is not guard:
        return None
    request = task.request
    if not hasattr(task, GUARD):
        text = (
            "Task %s was sent unguarded; put @single_instance_task above Celery's decorator (W005)"
        )
        logger.warning(text, task.name)
    elif request.called_directly or any(run.task_id == request.id for run in runs()):
        return None
    install(guard, type(task))
    return task


def guard_for(cls: type[AnyTask]) -> Guard | None:
    return getattr(cls.run, GUARD, None) or getattr(private.function_of(cls), GUARD, None)


def _guard_class(cls: type[AnyTask]) -> None:
    if (guard := guard_for(cls)) is not None:
        install(guard, cls)


def _guard_tasks(app: Any) -> None:
    for task in list(app.tasks.values()):
        _guard_class(task.__class__)  # type() would be that of a proxy


@private.connect_on_app_finalize
def _on_finalize(app: Any) -> None:
    private.annotate_first(app, _guard_class)
    app.on_after_finalize.connect(lambda **kwargs: _guard_tasks(app), weak=False)
