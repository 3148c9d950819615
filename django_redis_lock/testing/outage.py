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
            for method in ("do", "ado"):
                failing = _failing(getattr(step, method), using)
                stack.enter_context(patch.object(step, method, failing))
        yield
    renewer.at_exit()


def _failing(do: Callable[..., Any], using: str | None) -> Callable[..., Any]:
    def fail(step: Any, port: Any) -> Any:
        alias = getattr(port, "alias", None)
        if alias is None or using not in (None, alias):  # a part of a call has no alias
            return do(step, port)
        call = step.call if isinstance(step, Post) else step
        error = LockUnavailable(
            f"LOCKS[{alias!r}] is not available: the test said unavailable().", name=call.lock_name
        )
        error.passing = False  # a retry would meet the same
        error.undone = isinstance(call, Breaking)  # nothing was sent
        raise error

    return fail
