"""Servers that no operation reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import Breaking, Call, Listen, Post


@contextmanager
def unavailable(using: str | None = None) -> Iterator[None]:
    """Let every operation in this process raise ``LockUnavailable`` during the block.

    ``using`` limits it to an alias. Nothing is sent and nothing is retried, so the errors come at
    once, on a server as with locmem and dummy. Renewals fail, too; a lock whose lease ends
    meanwhile is lost. At the end, releases that failed are sent.
    """
    with ExitStack() as stack:
        for step in (Call, Listen, Post):
            stack.enter_context(patch.object(step, "do", _failing(step.do, using)))
            stack.enter_context(patch.object(step, "ado", _failing_async(step.ado, using)))
        yield
    renewer.at_exit()


def _failing(do: Callable[..., Any], using: str | None) -> Callable[..., Any]:
    def fail(step: Any, port: Any) -> Any:
        if _concerns(port, using):
            raise _error(step, port)
        return do(step, port)

    return fail


def _failing_async(ado: Callable[..., Any], using: str | None) -> Callable[..., Any]:
    async def fail(step: Any, port: Any) -> Any:
        if _concerns(port, using):
            raise _error(step, port)
        return await ado(step, port)

    return fail


def _concerns(port: Any, using: str | None) -> bool:
    """Whether a step is meant to fail; the parts of a call that was sent have no alias."""
    alias = getattr(port, "alias", None)
    return alias is not None and using in (None, alias)


def _error(step: Any, port: Any) -> LockUnavailable:
    call = step.call if isinstance(step, Post) else step
    error = LockUnavailable(
        f"LOCKS[{port.alias!r}] is not available: the test said unavailable().", name=call.lock_name
    )
    error.passing = False  # a retry would meet the same
    error.undone = isinstance(call, Breaking)  # nothing was sent
    return error
