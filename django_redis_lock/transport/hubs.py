"""The hubs of the three waiting schemes, each made when somebody first waits by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.transport.listener import Listener
from django_redis_lock.transport.polling import ClaimingHub, Polling
from django_redis_lock.transport.popping import Popper


class Hubs:
    """Where the waiters of one process and server sleep: one hub for each scheme in use."""

    def __init__(
        self,
        connect: Callable[[], Any],
        prefix: str,
        polling: Polling,
        give_back: Callable[[str, str, float], object],
        *,
        confirming: bool,
    ) -> None:
        self._makers: dict[str, Callable[[], Hub]] = {
            "queue": lambda: Listener(connect, prefix, give_back, confirming=confirming),
            "blpop": lambda: Popper(connect, prefix, give_back, confirming=confirming),
            "poll": lambda: ClaimingHub(polling),
        }
        self._hubs: dict[str, Hub] = {}

    def __getitem__(self, scheme: str) -> Hub:
        hub = self._hubs.get(scheme)
        if hub is None:  # of two that are made at the same time, one is used
            hub = self._hubs.setdefault(scheme, self._makers[scheme]())
        return hub

    def __iter__(self) -> Iterator[Hub]:
        return iter([*self._hubs.values()])
