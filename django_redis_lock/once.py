"""An attribute that is made when it is first read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from django_redis_lock.identity import current_process, forget_after_fork

Value = TypeVar("Value")


class made_once(Generic[Value]):  # noqa: N801 - is used as a decorator, like property
    """A method's result as an attribute: made once, whatever number of threads read it at first.

    ``functools.cached_property`` has a mutex in Python 3.11 that may be locked in a forked child
    for ever, and none in later versions, where each of the threads makes a result of its own.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._name = make.__name__
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Take a new mutex; what a thread of the parent was making is made here anew."""
        self._mutex = threading.RLock()

    @overload
    def __get__(self, instance: None, owner: type) -> made_once[Value]: ...

    @overload
    def __get__(self, instance: Any, owner: type) -> Value: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        current_process()  # in a forked child the mutex may be another
        values = instance.__dict__
        with self._mutex:
            value = values.get(self._name, self)
            if value is self:
                value = values[self._name] = self._make(instance)
        return value
