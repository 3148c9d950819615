"""Play scenarios with one guard: `python -m benchmarks.celery_guards.play GUARD SCENARIO...`.

A process of its own for each guard: the environment says which guard's tasks the app has, and
libraries keep their connections in globals. The result goes to standard output as JSON.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from redis import Redis

from example_project.embedded import EmbeddedServer

from ..celery_worker import CeleryWorker, CeleryWorkerError
from .contenders import GUARDS, SLUG
from .diary import LOCKS, PORT

MODULE = "benchmarks.celery_guards.app"
CHILDREN = 4


def play(slug: str, names: list[str]) -> dict[str, Any]:
    """Return what was seen of a guard in each scenario, or the error that kept it from running."""
    with EmbeddedServer() as server:
        os.environ |= {PORT: str(server.port), SLUG: slug}
        with Redis.from_url(server.url(LOCKS)) as admin:
            info = admin.info("server")
        result: dict[str, Any] = {"server": _server_version(info), "scenarios": {}}
        try:
            from .app import app

            options = ("--concurrency", str(CHILDREN), "--loglevel", "INFO", "--queues", "guards")
            with CeleryWorker(MODULE, {}, *options) as worker:
                result["scenarios"] = _play_all(slug, names, app, worker)
        except (Exception, CeleryWorkerError) as error:
            result["error"] = f"{type(error).__name__}: {error}"
        return result


def _play_all(slug: str, names: list[str], app: Any, worker: CeleryWorker) -> dict[str, Any]:
    from .scenarios import SCENARIOS
    from .stage import Stage, StageError

    seen: dict[str, Any] = {}
    for number, scenario in enumerate(SCENARIOS):
        if scenario.name not in names:
            continue
        stage = Stage(app, GUARDS[slug], worker, shop_id=100 * (number + 1))
        stage.locks.flushdb()
        began = time.monotonic()
        if not stage.has(scenario.task):
            seen[scenario.name] = {"no_such_option": True}
            continue
        try:
            seen[scenario.name] = asdict(scenario.play(stage))
        except StageError as error:
            seen[scenario.name] = {"error": str(error)}
        stage.clean_up()
        took = time.monotonic() - began
        seen[scenario.name]["took"] = round(took, 1)
        print(f"  {slug}: {scenario.name}, {took:.1f} s", file=sys.stderr, flush=True)
    return seen


def _server_version(info: dict[str, Any]) -> str:
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], sys.argv[2:])), flush=True)
    os._exit(0)  # past the results that would still speak to the server when they are collected
