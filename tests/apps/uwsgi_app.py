"""An application whose locks were in use in uWSGI's master before the workers were forked."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django
from django.conf import settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.support.process import current_process

LEASE = float(os.environ["UWSGI_LEASE"])
"""Seconds; requests hold their lock for longer, so that it has to be renewed."""

settings.LOCKS = json.loads(os.environ["UWSGI_LOCKS"])
django.setup()


def use(using: str) -> Any:
    """Do in the master all that leaves something behind: call, renew, wait; return a held lock."""
    held = lock(f"master-{os.getpid()}", 60, auto_renew=True, using=using)
    assert held.acquire()
    first = lock("warm", LEASE, using=using)
    assert first.acquire()
    waiting = threading.Thread(target=lock("warm", LEASE, using=using).acquire)
    waiting.start()
    while not locks[using].registry_for("").present():
        time.sleep(0.001)
    first.release()
    waiting.join()
    return held


IN_MASTER = [use(using) for using in settings.LOCKS]
# Let the threads that this began come to rest: a worker of uWSGI hangs for ever, before it runs a
# line of Python, where one of the master's has the interpreter's lock in the moment of the fork.
time.sleep(0.5)


def hold(seconds: str, aliases: str) -> dict[str, Any]:
    with ExitStack() as stack:
        held = [
            stack.enter_context(lock("shop", LEASE, auto_renew=True, using=using))
            for using in aliases.split(",")
        ]
        began = time.monotonic()
        time.sleep(float(seconds))
        for one in held:
            one.ensure_held()
        return {"span": (began, time.monotonic()), "fences": [one.fence for one in held]}


def inherited() -> dict[str, Any]:
    """Tell what comes of releasing the locks that the master holds."""
    errors = []
    for one in IN_MASTER:
        try:
            one.release()
        except LockNotOwned as error:
            errors.append(str(error))
    return {"errors": errors}


VIEWS: dict[str, Callable[..., dict[str, Any]]] = {"hold": hold, "inherited": inherited}


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    _, view, *arguments = environ["PATH_INFO"].split("/")
    told = {**VIEWS[view](*arguments), "pid": os.getpid(), "process": current_process().id}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told).encode()]
