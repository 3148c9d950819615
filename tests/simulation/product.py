"""Puts the package on the virtual clock: its threads, time and dice are the simulation's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import pkgutil
import random
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from greenlet import getcurrent

import django_redis_lock
from django_redis_lock.backends import clusters as cluster
from django_redis_lock.backends.clusters import listener as cluster_listener
from django_redis_lock.backends.clusters import topology
from django_redis_lock.backends.redlock import servers as quorum
from django_redis_lock.primitives import lock as lock_module
from django_redis_lock.protocol import drivers, waiting
from django_redis_lock.protocol.lease import Request
from django_redis_lock.support import process as processes
from django_redis_lock.support import threads
from django_redis_lock.transport import async_client, location, packing, parking, receiving
from tests.simulation import clients, slots
from tests.simulation.threads import virtual_thread, virtual_threading, virtual_time

FLOORS = tuple(
    f"{django_redis_lock.__name__}.{floor}"
    for floor in ("support", "protocol", "transport", "backends", "primitives")
)
dice = random.Random()
"""The dice of the package, and of its tokens."""


class Identity:
    """What the package knows of a process. It takes the place of ``support.process.Process``."""

    def __init__(self, number: int) -> None:
        self.id = f"{number:016x}"
        self.pid = processes.getpid()
        self.host = "simulated"
        self.pid_space = ""
        self._record = f'{{"host":"simulated","pid":{number},"thread":"main"'

    def record(self) -> str:
        return self._record


class _RenewerOfProcess:
    """The renewer of the process whose thread runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getcurrent().process.renewer, name)


class _Execution:
    """What tells threads apart for reentrance."""

    @property
    def identity(self) -> object:
        return getcurrent()


def _request(name: str, token: str, *arguments: Any, **options: Any) -> Request:
    """Make a request, and let the thread's actor know its token."""
    request = Request(name, token, *arguments, **options)
    getcurrent().requested(request)
    return request


def _monotonic() -> float:
    return virtual_time.monotonic()


_VIRTUAL = {
    "threading": virtual_threading,
    "_thread": virtual_thread,
    "time": virtual_time,
    "monotonic": _monotonic,
    "random": dice,
    "os": SimpleNamespace(urandom=dice.randbytes),
    "new_connection": clients.Connection,
    "selectors": clients.virtual_selectors,
    "socket_of": lambda connection: connection,
    "_Waker": clients.Waker,
}
_CLUSTER = topology, cluster, cluster_listener
_STEP = topology.SHARDS // slots.SHARDS
_OTHERS: tuple[tuple[Any, str, Any], ...] = (
    (lock_module, "Request", _request),
    (processes, "_own_thread", _Execution()),
    (processes, "_process", processes._process),
    (location, "problem_of", functools.cache(location.problem_of)),
    (cluster, "BlockingClient", clients.Client),
    (async_client, "connect", clients.connect),
    *(
        (module, "Connection", lambda connection: connection)
        for module in (async_client, receiving)
    ),
    (topology, "SHARD_SLOTS", topology.SHARD_SLOTS[::_STEP]),
    *((module, "TAGS", topology.TAGS[::_STEP]) for module in _CLUSTER),
    *((module, "SHARDS", slots.SHARDS) for module in _CLUSTER),
)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Replace what the package uses of the system."""
    for thread in threading.enumerate():  # of earlier tests: to read the clock moves it
        if re.match("django-redis-lock-(heartbeat|quorum|renewal)", thread.name):
            thread.join(threads.IDLE + 5)
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    real_renewer = importlib.import_module(f"{django_redis_lock.__name__}.backends.renewal").renewer
    ours = _RenewerOfProcess()
    for module in _modules():
        for name, value in _VIRTUAL.items():
            if hasattr(module, name) and module is not processes:  # of which ``enter`` takes care
                replace(module, name, value)
        if getattr(module, "renewer", None) is real_renewer:
            replace(module, "renewer", ours)
    for other in _OTHERS:
        replace(*other)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


def _modules() -> list[ModuleType]:
    for floor in FLOORS:
        package = importlib.import_module(floor)
        for found in pkgutil.walk_packages(package.__path__, f"{floor}."):
            importlib.import_module(found.name)
    return [module for name, module in sys.modules.items() if name.startswith(FLOORS)]


def begin() -> None:
    """Make what the package draws and counts the same in each schedule."""
    dice.seed(1)
    waiting._numbers = itertools.count(1)
    drivers._retained.clear()


def enter(process: Any) -> None:
    """Let the package know the process whose thread runs."""
    processes._process = process.identity


def shown(words: Sequence[bytes]) -> str:
    """Return a command as text, with the name of its script, and tokens cut short."""
    name, *rest = [word.decode(errors="replace") for word in words]
    if name in ("EVALSHA", "EVAL"):
        sha, _, *rest = rest
        name = _SCRIPTS.get(sha, name)
    return " ".join([name, *(_TOKEN.sub(r"\1", word) for word in rest)])


_SOURCES = [
    (name.lower(), script)
    for module in (packing, parking, quorum)
    for name, script in vars(module).items()
    if isinstance(script, packing.Script)
]
KNOWN_SCRIPTS = {script.sha.encode(): script.source.encode() for _, script in _SOURCES}
"""What a server knows that has run for a while: the source of each script, by its digest."""
_TOKEN = re.compile("([0-9a-f]{4})[0-9a-f]{28,44}")
_SCRIPTS = {key: name for name, script in _SOURCES for key in (script.sha, script.source)}
