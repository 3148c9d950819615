"""What is guarded: the options of a task, the key of a call, and with whom that shares its lock."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

from celery import Task
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.celery import private
from django_redis_lock.celery.options import Options, make_options, project_defaults
from django_redis_lock.support.arguments import MOST_AT_ONCE, Sharing, check_number
from django_redis_lock.support.functions import is_async, is_generator
from django_redis_lock.tasks.keys import MAX_KEY_LENGTH, AsModels, KeyMaker, check_key

AnyTask: TypeAlias = "Task[Any, Any]"


class Guard:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        check_key(given.get("key"), given.get("unique_on"))
        check_key(given.get("turns"), None, "turns")
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
        if len(made) <= MAX_KEY_LENGTH:
            return made
        digest = "#" + hashlib.sha256(made.encode()).hexdigest()[:32]
        return made[: MAX_KEY_LENGTH - len(digest)] + digest

    def sharing(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sharing:
        """Return how a call, whose key was made, shares its lock with others that may run."""
        number = self.options.concurrency
        if callable(number):
            try:
                number = number(**self.key_makers[type(task)][0].named(args, kwargs))
            except TypeError as error:
                raise TypeError(
                    f"The concurrency of task {task.name} is a function that is given all "
                    f"arguments by name; let it take **_ as well. {error}"
                ) from error
        number = check_number(f"Task {task.name}: concurrency", number, 0, MOST_AT_ONCE)
        return Sharing(shared=True, limit=number)

    def makers(self, cls: type[AnyTask]) -> tuple[KeyMaker, KeyMaker]:
        if cls in self.key_makers:
            return self.key_makers[cls]
        # That of the function, if Celery made the class of one.
        run = vars(cls).get("__wrapped__") or inspect.getattr_static(cls, "run")
        signature, static = inspect.signature(run), isinstance(run, staticmethod)
        if not static:
            own = list(signature.parameters.values())[1:]
            signature = signature.replace(parameters=own)
        as_models = private.argument_models(cls.run, static)
        return self.key_makers.setdefault(cls, self.make_makers(cls.run, signature, as_models))

    def make_makers(
        self,
        run: Callable[..., Any],
        signature: inspect.Signature,
        as_models: AsModels | None = None,
    ) -> tuple[KeyMaker, KeyMaker]:
        """Return what makes the keys and turns of calls. Raises ``TypeError`` or ``ValueError``."""
        if is_async(run) or is_generator(run):
            raise TypeError(
                f"{run!r} is a coroutine or generator function, whose body runs after the call; "
                f"take the lock inside it, with a with statement."
            )
        given = self._given.get
        turns = KeyMaker(given("turns"), None, signature, as_models, "turns")
        return KeyMaker(given("key"), given("unique_on"), signature, as_models), turns
