"""What the tests of the admin have in common: visitors, addresses, and holders of any kind."""

from __future__ import annotations

import json
import time
from typing import Any

import redis
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_redis_lock import locks
from django_redis_lock.models import HeldLock

LIST = "/admin/django_redis_lock/heldlock/"
RELEASE = f"{LIST}release/"
VIEW, MAY_RELEASE = "view_heldlock", "release_heldlock"


def root(**options: Any) -> Client:
    return _logged_in(get_user_model().objects.create_superuser("root"), **options)


def staff(*permissions: str, **options: Any) -> Client:
    """Return a client of a staff member with permissions of ours."""
    user = get_user_model().objects.create_user(f"staff-{'-'.join(permissions)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return _logged_in(user, **options)


def _logged_in(user: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def page_of(name: str, using: str = "default", view: str = "change") -> str:
    return f"{LIST}{quote(HeldLock.of(using, name).pk)}/{view}/"


def box_of(name: str, using: str = "default") -> str:
    """Return what the box of a lock says now."""
    holder = locks[using].holder(name)
    assert holder is not None
    return HeldLock.of(using, name, holder.token_id).hold


def names(response: Any) -> list[str]:
    return [row.name for row in response.context["cl"].result_list]


def told(response: Any) -> list[tuple[str, str]]:
    return [(message.level_tag, str(message)) for message in response.context["messages"]]


def release(client: Client, *boxes: str, reason: str = "") -> Any:
    """Post what the confirmation page does, and return the page that follows."""
    data = {ACTION_CHECKBOX_NAME: boxes, "reason": reason, "confirmed": "yes"}
    return client.post(RELEASE, data, follow=True)


def hold_as(
    server: redis.Redis, name: str, *, ttl: float | None = 60, held_for: float = 0, **record: Any
) -> None:
    """Write a lock as another process would, with any record."""
    fence = int((time.time() - held_for) * 1_000_000)
    value = f"token-of-{name} {fence} - - {json.dumps({'host': 'far', 'pid': 1, **record})}"
    server.set(f"lock:{name}", value, px=None if ttl is None else int(ttl * 1000))
    end = "inf" if ttl is None else int((time.time() + ttl) * 1000)
    server.zadd("lock-index", {name: end})
