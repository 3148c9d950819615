"""Holds that need attention: held for too long, with no expiry and old, or renewed late."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_redis_lock import Holder, Lock, locks
from django_redis_lock.protocol.lease import write_record
from django_redis_lock.protocol.records import Attention, attention, read_holder

NOW_MS = 1_700_000_000_000
DAY = 86_400


def read(value: str, ttl_ms: int, name: str = "n") -> Holder:
    known = {"using": "default", "waiters": 0, "now_ms": NOW_MS}
    return read_holder(value.encode(), name=name, ttl_ms=ttl_ms, **known)


@pytest.mark.parametrize(
    ("name", "held_for", "ttl", "renewed", "expected"),
    [
        ("any", 3 * DAY, 25, True, None),  # renewed time and again, as it should be
        ("slow:1", 59, 25, True, None),
        ("slow:1", 61, 25, True, Attention.HELD_LONG),
        ("slow:1", 61, None, False, Attention.ENDLESS_OLD),
        ("slow:1", 59, None, False, None),
        ("any", DAY - 1, None, False, None),
        ("any", DAY + 1, None, False, Attention.ENDLESS_OLD),
        ("any", 40, 15.1, "30", None),
        ("any", 40, 14.9, "30", Attention.RENEWAL_LATE),
        ("slow:1", 61, 14.9, "30", Attention.RENEWAL_LATE),
        ("any", 40, 14.9, False, None),  # ends by itself
        ("any", 40, 44, "90", Attention.RENEWAL_LATE),
        ("any", 50, 10, '30,"max_hold":60', None),  # renewed for the last time
        ("any", 40, 10, '30,"max_hold":60', Attention.RENEWAL_LATE),
        ("slow:1", 60, 25, True, None),  # as long as is allowed
        ("any", DAY, None, False, None),
        ("any", 45, 14, '30,"max_hold":60', None),
    ],
)
def test_what_is_wrong(
    settings: Any, name: str, held_for: float, ttl: float | None, renewed: Any, expected: Any
) -> None:
    """A renewed lock may be held for days; late renewals and long holds are marked."""
    settings.LOCKS = {
        "default": {
            "BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend",
            "OPERATORS": {"WARN_AFTER": {"slow:*": 60, "weekly": 7 * DAY}},
        }
    }
    record = write_record()
    if isinstance(renewed, str):
        lease = re.sub(r"(\d+)", r"\g<1>000", renewed)
        record = f'{record[:-1]},"auto_renew":true,"lease":{lease}}}'
    elif renewed:
        record = f'{record[:-1]},"auto_renew":true}}'
    fence = (NOW_MS - int(held_for * 1000)) * 1000
    holder = read(f"token {fence} - {record}", -1 if ttl is None else int(ttl * 1000), name=name)
    assert attention(holder, locks["default"].operators.threshold(holder.name)) is expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, (30, None)),
        ({"timeout": 7.5, "auto_renew": True}, (7.5, None)),
        ({"max_hold": 60}, (30, 60)),
        ({"max_hold": 2.5}, (2.5, 2.5)),
        ({"max_hold": 1e307}, (30, None)),  # that is, without limit
        ({"timeout": 7.5}, (None, None)),
        ({"timeout": None}, (None, None)),
    ],
)
def test_the_record_tells_how_a_lock_is_renewed(
    settings: Any, options: dict[str, Any], told: tuple[float | None, float | None]
) -> None:
    """A reader may have another ``TIMEOUT``, as after a deployment."""
    entry = {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"}
    settings.LOCKS = {"default": {**entry, "TIMEOUT": 30}, "later": {**entry, "TIMEOUT": 120}}
    held = Lock(lambda: locks["default"], "n", **options)
    with held:
        holder = locks["default"].holder("n")
        assert holder is not None
        assert (holder.lease, holder.max_hold) == told
        assert attention(holder, locks["later"].operators.threshold(holder.name)) is None
