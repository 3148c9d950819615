"""Each log line is one line of visible characters, whatever another program wrote to the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.redis import ScriptedServer
from django_redis_lock.celery import freeing
from django_redis_lock.celery.outbox import Publisher, sealed
from django_redis_lock.operators import release_shown
from django_redis_lock.protocol.records import Holder
from django_redis_lock.tasks.conflicts import Conflict

EVIL = "a\n\x1b[31mb\u202ec"
RECORD = {"host": EVIL, "pid": 7, "thread": EVIL}
OF_TASK = {**RECORD, "task_id": EVIL, "task_name": EVIL}
TASK: Any = SimpleNamespace(name="mail")


def conflict(holder: Holder, **more: Any) -> Conflict:
    return Conflict("run", TASK, "id", holder.name, holder, (), {}, **more)


def refused(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Any, call: Any) -> Any:
        raise redis.ResponseError(f"ERR {EVIL}")

    held = lock("another", timeout=20)
    with pytest.raises(KeyError), held:
        monkeypatch.setattr(ScriptedServer, "call", call)
        raise KeyError


def unpublished(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, about = object.__new__(Publisher), {"lock": holder.name, "token": "token"}
    publisher.app, publisher.unreachable, publisher._producer = None, "", None
    monkeypatch.setattr(publisher, "_task_of", Mock())
    monkeypatch.setattr(publisher, "_send", Mock(side_effect=OSError(EVIL)))
    text = sealed({**about, "id": EVIL, "options": {"headers": {}}}).encode()
    publisher._publish(locks["default"], holder.name, "token", text)


WAYS: dict[str, Callable[[Holder, pytest.MonkeyPatch], object]] = {
    "freed": lambda one, _: freeing._release(locks["default"], one.name, one.token_id),
    "taken": lambda one, _: release_shown([one], by=EVIL, reason=EVIL),  # type: ignore[list-item]
    "skipped": lambda one, _: conflict(one).skip(),
    "refused": lambda one, _: conflict(one).error(),
    "when sent": lambda one, _: conflict(one, when_sent=OF_TASK).skip(),
    "an error of the server": refused,
    "a parked message": unpublished,
}


@pytest.mark.parametrize("record", [RECORD, OF_TASK], ids=["process", "task"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_log_lines_show_what_is_invisible(
    client: redis.Redis,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Holder, pytest.MonkeyPatch], object],
    record: dict[str, Any],
) -> None:
    caplog.set_level("INFO", "django_redis_lock")
    client.set(f"lock:{name}", f"token 1700000000000000 - - {json.dumps(record)}", px=60_000)
    holder = locks["default"].holder(name)
    assert holder is not None
    with monkeypatch.context() as patched:
        way(holder, patched)
    assert caplog.messages
    assert [line for line in caplog.messages if not line.isprintable()] == []
