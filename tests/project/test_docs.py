"""The tables of the reference, tested against the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import Celery
from django.dispatch import Signal
from prometheus_client import Counter

import django_redis_lock
from django_redis_lock import exceptions, lock, lock_many, locks, semaphore, signals
from django_redis_lock.backends import settings as entry_settings
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.getset import GetSetLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.redlock import OWED_FOR, RedlockLockBackend
from django_redis_lock.celery import freeing, polling, single_instance_task
from django_redis_lock.celery.key_locks import MessageHeader, TaskLock
from django_redis_lock.celery.options import ON_CONFLICT
from django_redis_lock.celery.outbox import outbox_of
from django_redis_lock.contrib.prometheus import metrics
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import DEFAULT_BACKEND
from django_redis_lock.protocol import calls, heartbeats, locking, waiting
from django_redis_lock.support.arguments import WAITING_SCHEMES, Default
from django_redis_lock.tasks import conflicts
from django_redis_lock.tasks.conflicts import Conflict
from django_redis_lock.testing import unavailable
from django_redis_lock.transport import packing
from django_redis_lock.views import locked
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import app as tests_app
from tests.contracts.capabilities import CAPABILITIES, LACKS
from tests.simulation import promises
from tests.tools import queue
from tests.tools.console import command
from tests.tools.docs import DOCS, table
from tests.tools.parking import parking

PACKAGE = Path(django_redis_lock.__file__).parent
RUNBOOK = DOCS / "how-to/runbook.md"
BACKENDS = (
    RedisLockBackend,
    RedlockLockBackend,
    GetSetLockBackend,
    LocMemLockBackend,
    DummyLockBackend,
)


def test_the_settings_and_their_defaults_are_those_of_the_code(settings: Any) -> None:
    settings.LOCKS = {"default": {}}
    backend = locks.create("default")
    assert isinstance(backend, RedisLockBackend)
    documented = {row[0]: row[1] for row in table(DOCS / "reference/settings.md", "An entry")}
    assert {name: ast.literal_eval(default) for name, default in documented.items()} == {
        "BACKEND": DEFAULT_BACKEND,
        "LOCATION": backend.location.alias,
        "TIMEOUT": backend.timeout,
        "BLOCKING_TIMEOUT": backend.blocking_timeout,
        "KEY_PREFIX": backend.key_prefix,
        "OPTIONS": {},
        "OPERATORS": {},
    }
    assert list(documented) == list(entry_settings.KEYS)
    of_operators = {row[0]: row[1] for row in table(DOCS / "reference/settings.md", "Operators")}
    assert {name: ast.literal_eval(default) for name, default in of_operators.items()} == {
        field.upper(): value for field, value in dataclasses.asdict(backend.operators).items()
    }


def test_the_options_and_their_defaults_are_those_of_the_code() -> None:
    rows = table(DOCS / "reference/settings.md", "Options")
    taken = {(option, kind.__name__) for kind in BACKENDS for option in kind.options}
    assert {(row[0], row[1]) for row in rows} == taken
    assert [ast.literal_eval(row[2]) for row in rows if row[0] == "WAIT"] == [WAITING_SCHEMES[0]]


@pytest.mark.parametrize(
    ("page", "heading", "function"),
    [
        ("locks.md", "lock()", lock),
        ("celery.md", "single_instance_task", single_instance_task),
    ],
)
def test_the_arguments_and_their_defaults_are_those_of_the_code(
    page: str, heading: str, function: Any
) -> None:
    documented = [row[:2] for row in table(DOCS / "reference" / page, heading)]
    assert documented == [
        [item.name, _documented_default(item.default)] for item in _parameters(function)
    ]


@pytest.mark.parametrize(
    ("page", "heading", "function"),
    [
        ("locks.md", "semaphore()", semaphore),
        ("locks.md", "lock_many()", lock_many),
        ("views.md", "locked", locked),
    ],
)
def test_the_other_arguments_are_those_of_lock(page: str, heading: str, function: Any) -> None:
    """Below the heading are those that ``lock()`` has not, or has another default of."""
    of_lock, taken = (
        {item.name: _documented_default(item.default) for item in _parameters(one)}
        for one in (lock, function)
    )
    path = DOCS / "reference" / page
    own = {row[0]: row[1] for row in table(path, heading)}
    assert taken.items() - of_lock.items() <= own.items() <= taken.items()
    section = path.read_text().split(f"# {heading}\n", 1)[1].split("\n## ")[0]
    (but,) = re.findall(r"of `lock\(\)`, except (.+?), and:", " ".join(section.split()))
    assert set(re.findall(r"`(\w+)`", but)) == of_lock.keys() - taken.keys()


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [*inspect.signature(function).parameters.values()]


def _documented_default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, Default):
        return "not given"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_the_capabilities_of_the_backends_are_those_of_the_code() -> None:
    page = DOCS / "reference/backends.md"
    for name, *documented, _ in table(page, "Backends"):
        lacked = LACKS.get(name, frozenset())
        assert documented == ["no" if item in lacked else "yes" for item in CAPABILITIES], name


def test_the_tree_of_exceptions_is_that_of_the_code() -> None:
    text = (DOCS / "reference/exceptions.md").read_text()
    (tree,) = re.findall(r"^```text\n(LockError\n.*?)```", text, re.MULTILINE | re.DOTALL)
    ancestors: list[type] = []
    for line in tree.splitlines():
        name = line.lstrip("│├└─ ")
        kind = getattr(exceptions, name)
        del ancestors[(len(line) - len(name)) // 4 :]
        assert kind.__bases__ == (ancestors[-1] if ancestors else Exception,), name
        ancestors.append(kind)
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    assert {kind.__name__ for kind in kinds if issubclass(kind, exceptions.LockError)} == set(
        re.findall(r"\w+", tree)
    )


def test_the_arguments_of_the_signals_are_those_that_are_sent(
    server: EmbeddedServer, name: str
) -> None:
    sent: dict[Any, list[str]] = {}

    def note(signal: Any, sender: Any, **arguments: Any) -> None:
        sent[signal] = list(arguments)

    known = {key: value for key, value in vars(signals).items() if key.startswith("lock_")}
    for each in known.values():
        each.connect(note)
    with lock(name):
        lock(name, blocking_timeout=0.01).acquire()
    detached, lost = lock(name), lock(name)
    detached.acquire()
    detached.detach(10)
    locks["default"].force_release(name)
    lost.acquire()
    locks["default"].free(name, lost.token_id)
    lost.owned()
    with unavailable(), pytest.raises(LockUnavailable):
        lock(name).locked()
    for each in known.values():
        each.disconnect(note)
    rows = table(DOCS / "reference/signals.md", "Signals")
    assert {row[0]: row[2].split(", ") for row in rows} == {
        key: sent[signal] for key, signal in known.items()
    }


def test_the_system_checks_are_those_of_the_code() -> None:
    page = DOCS / "reference/checks.md"
    rows = table(page, "System checks") + table(page, "Celery tasks")
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    in_code = set(re.findall(r"\b[EWI]\d{3}\b", source))
    assert sorted(row[0].rpartition(".")[2] for row in rows) == sorted(in_code)


def test_the_log_lines_of_views_are_those_of_the_code() -> None:
    rows = table(DOCS / "reference/views.md", "Log lines")
    source = (PACKAGE / "views/__init__.py").read_text()
    logged = re.findall(r"logger\.\w+\((?:level, )?\"(.+?)\"", source)
    assert sorted(row[1] for row in rows) == sorted(logged)


def test_the_metrics_are_those_of_the_code() -> None:
    documented = {row[0] for row in table(DOCS / "reference/metrics.md", "Metrics")}
    counted = [each for each in vars(metrics).values() if isinstance(each, Counter)]
    counted += metrics.OF_GROUPS.values()
    known = set()
    for metric in [*counted, *metrics.HELD_LOCKS.describe()]:
        (family,) = metric.describe() if metric in counted else [metric]
        name = family.name.removeprefix("django_redis_lock_")
        suffix = "_total" if family.type == "counter" else ""
        assert (family.type == "histogram") == (name in ("wait_seconds", "hold_seconds"))
        labels = [each for each in metric._labelnames if each not in metrics.SERVER]
        known.add(f"{name}{suffix}{{{','.join(labels)}}}")
    assert documented == known


# The runbook, whose commands ``make workers`` types.


@pytest.mark.parametrize("line", re.findall(r"`locks ([^`]+)`", RUNBOOK.read_text()))
def test_each_command_within_the_text_can_be_typed(server: EmbeddedServer, line: str) -> None:
    tests_app.set_current()
    words = line.replace("NAME", "a").replace("ID", "0" * 16).split()
    done = command(*words, *(["--dry-run"] if words[0] == "release" else []), "--using=default")
    assert done.code in (0, 3), done.err


# The server, and Celery.


def test_the_tables_of_celery_are_those_of_the_code(server: EmbeddedServer, name: str) -> None:
    page = DOCS / "reference/celery.md"

    def first(heading: str) -> list[str]:
        return [name for row in table(page, heading) for name in row[0].split(", ")]

    policies = {
        (row[0], moment) for row in table(page, "Policies") for moment in row[1].split(", ")
    }
    assert policies == {(one, moment) for moment, known in ON_CONFLICT.items() for one in known}
    signals = [name for name, value in vars(conflicts).items() if isinstance(value, Signal)]
    assert first("Signals") == signals
    assert first("Conflict") == [field.name for field in fields(Conflict)]
    assert first("Message header") == [field.name for field in fields(MessageHeader)]
    with lock(name):
        task = Mock()
        task.name = "task"
        result = Conflict("run", task, None, name, locks["default"].holder(name), (), {}).skip()
    assert first("TaskSkipped") == list(result)
    about = table(page, "TaskSkipped")[-1][1]
    assert re.findall("task_id|task_name|host|pid|since|ttl", about) == list(result["holder"])


def test_the_numbers_are_those_of_the_code() -> None:
    for path, value, _ in table(DOCS / "reference/keys-and-constants.md", "Numbers"):
        assert _constant(path) == ast.literal_eval(value), path


def test_the_times_of_failures_are_those_of_the_code() -> None:
    """Each figure is in a phrase, and made of constants or at least as much as these."""
    page = " ".join((DOCS / "explanation/failure-modes.md").read_text().split())
    found = re.findall(r"^ *local ([A-Z_]+) = (\d+)", packing.ACQUIRE.source, re.MULTILINE)
    lua = {name: int(value) / 1000 for name, value in found}
    beat, retries = lua["BEAT"], sum(calls.RETRY_PAUSES)
    stops = TaskLock(lambda: locks["default"], "a", 1).check_wait() - monotonic()
    made = [
        ("within {:g} s of a hand-off", waiting.CLAIM),
        ("taken back after {:g} s", waiting.CLAIM),
        ("seen in the last {:g} s", beat),
        ("after at most {:g} s, once", promises.DELAY),
        ("Total delay: {:g} s", promises.DELAY),
        ("{:g}, {:g} and 3 s", beat, waiting.CLAIM),
        ("a parked task is sent within {:g} s", polling.POLL_EVERY),
        ("already waiting tolerates {:g} s", waiting.OUTAGE_LIMIT),
        ("if the wait is under {:g} s", locking.GIVE_UP_AFTER),
        ("positions within {:g} s", heartbeats.BEAT_EVERY),
        ("Retries for {:g} s", retries),
        ("for up to {:g} min", OWED_FOR / 60),
        ("`worker_lost_wait` ({:g} s)", Celery(set_as_current=False).conf.worker_lost_wait),
    ]
    least = [
        ("ends, at most {:g} s later", 0.1, heartbeats.SHORTEST),
        ("Hidden within {:g} s", 3, lua["SHOWN"]),
        ("at most {:g} s after the wait ends", 0.3, calls.GRACE),
        ("{:g} s after the call", 1.3, locking.GIVE_UP_AFTER + calls.GRACE),
        ("removed within {:g} s", 10, heartbeats.WAITER_TIMEOUT + heartbeats.BEAT_EVERY),
        ("Calls retry for about {:g} s", 1, retries),
        ("(within {:g} s)", 1, retries),
        ("per try, for about {:g} s", 1, retries),
        ("within {:g} s of the death", 0.5, 2 * freeing.POLL_EVERY),
        ("stops within {:g} s", 0.5, stops),
    ]
    phrases = [text.format(*values) for text, *values in made]
    phrases += [text.format(figure) for text, figure, _ in least]
    assert not [each for each in phrases if each not in page]
    assert not [row for row in least if row[1] < row[2]]
    for each in sorted(phrases, key=len, reverse=True):
        page = page.replace(each, "")
    assert not re.findall(r".{30}\d (?:s|min)\b", page)


def _constant(path: str) -> Any:
    """Find ``module.NAME`` or ``module.Class.NAME`` in the package, whatever folder it is in."""
    parts = path.split(".")
    depth = next(number for number, part in enumerate(parts) if not part.islower())
    files = [file.relative_to(PACKAGE).with_suffix("") for file in PACKAGE.rglob("*.py")]
    paths = [file.parent if file.name == "__init__" else file for file in files]
    modules = [file for file in paths if list(file.parts[-depth:]) == parts[:depth]]
    assert len(modules) == 1, f"{path} is in {modules}"
    found: Any = importlib.import_module(".".join(("django_redis_lock", *modules[0].parts)))
    for name in parts[depth:]:
        found = getattr(found, name)
    return found


def test_the_keys_on_the_server_are_those_that_the_reference_lists(
    server: EmbeddedServer, client: redis.Redis, name: str
) -> None:
    """A held lock with a waiter has the listed keys and channel; some of them stay for good."""
    process = locks["default"].registry_for("").waits_in(name)
    rows = _listed_keys("Keys on the server", name).items()
    listed = {key.replace("{process}", process): kind for key, kind in rows}
    lock(name, timeout=60).acquire()
    locks["default"].force_release(name)
    lock(name, timeout=60).acquire()
    locks["default"].free(name, locks["default"].holder(name).token_id)
    with lock(name):
        (waiter,) = queue(lock(name))
        assert _keys(client) == listed
        channels = client.pubsub_channels("*")  # those of closed ones for a moment
        assert f"lock-grant:{process}" in channels
        assert all(re.fullmatch(r"lock-grant:c\w+-\d+", channel) for channel in channels)
    assert waiter.outcome()
    locks["default"].force_release(name)
    for_good = {key for key in client.keys("*") if client.ttl(key) < 0}
    assert for_good == {"lock-audit", "lock-fence"}


def test_the_keys_of_a_shared_lock_are_those_that_the_reference_lists(
    server: EmbeddedServer, client: redis.Redis, name: str
) -> None:
    """Its limit stays until it is cleared; the other keys go with the last hold."""
    locks["default"].set_limit(name, 2, by="ada")
    with semaphore(name, 9), lock(name, shared=True):
        listed = _listed_keys("Keys of a shared lock", name)
        assert listed.items() <= _keys(client).items()
        assert _keys(client).keys() - listed == {"lock-index", "lock-fence"}
    assert set(client.keys("*")) == {"lock-fence", "lock-limits"}
    locks["default"].set_limit(name, None)
    assert client.keys("*") == ["lock-fence"]


def test_the_keys_of_parked_tasks_are_those_that_the_reference_lists(
    server: EmbeddedServer, client: redis.Redis, name: str
) -> None:
    """Neither they nor the queue expire."""
    with parking(name) as parked:
        parked.park(2)
        locks["default"].force_release(name)
        rows = _listed_keys("Keys of parked tasks", name).items()
        broker = outbox_of(parked.consumer.app)
        client.hset(f"lock-parked:{broker}:troubles", "token", 1)
        client.hset(f"lock-parked:{broker}:aside", "token name", "1 it is not a signed text")
        listed = {key.format(broker=broker, turn="="): kind for key, kind in rows}
        assert listed == {key: kind for key, kind in _keys(client).items() if "-parked" in key}
        queue = f"lock-waiters:@{broker}:{name}", f"lock-queue:{name}"
        assert {client.ttl(key) for key in (*listed, *queue)} == {-1}


def _listed_keys(heading: str, name: str) -> dict[str, str]:
    rows = table(DOCS / "reference/keys-and-constants.md", heading)
    return {row[0].replace("{name}", name): row[1] for row in rows}


def _keys(client: redis.Redis) -> dict[str, str]:
    kinds = {key: client.type(key) for key in client.keys("*")}
    return {key: "sorted set" if kind == "zset" else kind for key, kind in kinds.items()}
