"""The guarded tasks: what they do, and their Celery options."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from celery import Task

from benchmarks.celery_guards.contenders import SOON, Body, Wanted
from benchmarks.celery_guards.diary import diary

HARD_LIMIT = 2
RETRIES = 2
_ENDLESS = 1_000_000_000


def work(self: Task, shop_id: int, label: str = "") -> str:
    """Run until the scenario says so."""
    with diary().run(shop_id, label, self.request.id):
        return "done" if diary().wait_for_go(shop_id, label) else "forgotten"


def busy(self: Task, shop_id: int, label: str = "") -> str:
    """Run in C, where only SIGKILL gets through; later calls just wait."""
    if label != "first":
        return work(self, shop_id, label)
    with diary().run(shop_id, label, self.request.id):
        return hashlib.pbkdf2_hmac("sha256", b"", b"", _ENDLESS).hex()


def retry(self: Task, shop_id: int, label: str = "") -> str:
    """Ask for an immediate retry, twice."""
    with diary().run(shop_id, f"{label}{self.request.retries}", self.request.id):
        pass
    if self.request.retries < RETRIES:
        raise self.retry(countdown=0)
    return "done"


def retry_once(self: Task, shop_id: int, label: str = "") -> str:
    """Ask for a retry once the scenario says so, if this is the first run."""
    if label == "first" and not self.request.retries:
        with diary().run(shop_id, "asks", self.request.id):
            diary().wait_for_go(shop_id, "asks")
        raise self.retry(countdown=SOON)
    return work(self, shop_id, label)


def with_items(self: Task, shop_id: int, label: str = "", items: Any = None) -> str:
    """Run with an argument that JSON changes."""
    return work(self, shop_id, label)


def fail(self: Task, shop_id: int, label: str = "") -> str:
    """Fail twice, so that Celery retries it."""
    with diary().run(shop_id, f"{label}{self.request.retries}", self.request.id):
        pass
    if self.request.retries < RETRIES:
        raise KeyError(shop_id)
    return "done"


def move(self: Task, shop_id: int, label: str = "") -> str:
    """Ask for an immediate retry with the next shop, where it works."""
    if label != "moves":
        return work(self, shop_id, label)
    with diary().run(shop_id, label, self.request.id):
        raise self.retry(args=(shop_id + 1, "moved"), kwargs={}, countdown=0)


def replace(self: Task, shop_id: int, label: str = "") -> str:
    """Do the same by a replacement."""
    if label != "moves":
        return work(self, shop_id, label)
    with diary().run(shop_id, label, self.request.id):
        raise self.replace(self.s(shop_id + 1, "moved"))


@dataclass(frozen=True)
class Kind:
    """A task that every guard wraps."""

    body: Body = work
    celery: dict[str, Any] = field(default_factory=dict)
    """Options for Celery."""
    wanted: Wanted = field(default_factory=Wanted)


_AUTO = {"autoretry_for": (KeyError,), "default_retry_delay": 0, "retry_backoff": False}

KINDS: dict[str, Kind] = {
    "work": Kind(),
    "limited": Kind(celery={"time_limit": HARD_LIMIT}),
    "busy": Kind(busy, celery={"time_limit": HARD_LIMIT}),
    "late": Kind(celery={"acks_late": True}),
    "late_rejected": Kind(celery={"acks_late": True, "reject_on_worker_lost": True}),
    "short": Kind(wanted=Wanted(lease="short")),
    "short_fixed": Kind(wanted=Wanted(lease="short, fixed")),
    "told_by_all": Kind(wanted=Wanted(key="all")),
    "quiet": Kind(wanted=Wanted(duplicates="quiet")),
    "raising": Kind(wanted=Wanted(duplicates="raise")),
    "patient": Kind(retry_once, wanted=Wanted(duplicates="wait")),
    "newest": Kind(wanted=Wanted(duplicates="newest")),
    "named": Kind(wanted=Wanted(key="label", duplicates="newest")),
    "items": Kind(with_items, wanted=Wanted(key="items")),
    "shared": Kind(wanted=Wanted(key="shared")),
    "shared_too": Kind(wanted=Wanted(key="shared")),
    "again": Kind(wanted=Wanted(duplicates="again")),
    "retry": Kind(retry, celery={"max_retries": RETRIES}),
    "move": Kind(move, celery={"max_retries": RETRIES}),
    "replace": Kind(replace),
    "autoretry": Kind(fail, celery={"max_retries": RETRIES, **_AUTO}),
}
"""By the names of the tasks."""
