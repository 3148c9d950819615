"""The configuration of gunicorn."""

from __future__ import annotations

from tests.apps.traced.tracing import set_up_tracing

preload_app = True
workers = 2


def post_fork(server: object, worker: object) -> None:
    set_up_tracing()
