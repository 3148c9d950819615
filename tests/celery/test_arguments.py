"""The arguments of a call by name: as ``inspect`` finds them, however they are found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_lock.celery.keys import KeyMaker


def none() -> None: ...
def one(a: Any) -> None: ...
def some(a: Any, b: Any = 2, c: Any = None) -> None: ...
def rest(a: Any, *args: Any, **kwargs: Any) -> None: ...
def named(a: Any, *, b: Any, c: Any = 3) -> None: ...
def placed(a: Any, /, b: Any = 2) -> None: ...


FUNCTIONS = [none, one, some, rest, named, placed]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 5), {}),
    ((1, 5, 6), {}),
    ((1, 5, 6, 7), {}),
    ((), {"a": 1}),
    ((), {"b": 1}),
    ((1,), {"a": 1}),
    ((1,), {"b": 5}),
    ((1,), {"c": 5}),
    ((1, 5), {"b": 5}),
    ((1,), {"z": 5}),
    ((), {"a": 1, "z": 5}),
    ((), {"b": 5, "z": 5}),
    ((), {"c": 1, "b": 2, "a": 3}),
]


@pytest.mark.parametrize("call", CALLS, ids=repr)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_arguments_are_those_that_inspect_finds(
    function: Callable[..., None], call: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    """The same values, or the same error message, for every kind of key."""
    args, kwargs = call
    signature = inspect.signature(function)
    makers = [KeyMaker(None, None, signature), KeyMaker("constant", None, signature)]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        text = str(error)
        for maker in makers:
            with pytest.raises(TypeError) as caught:
                maker("task", args, kwargs)
            assert str(caught.value) == text
    else:
        bound.apply_defaults()
        for maker in makers:
            assert maker._arguments(args, kwargs) == bound.arguments
