"""Plays scenarios with one guard, in a process of its own.

The environment names the guard whose tasks the app has, and libraries keep their connections in
globals.
"""

import os
import signal
from dataclasses import asdict
from typing import Any

from redis import Redis

from benchmarks.celery_guards.contenders import GUARDS, SLUG
from benchmarks.celery_guards.diary import LOCKS, PORT
from benchmarks.celery_guards.scenarios import SCENARIOS, Scenario
from benchmarks.celery_guards.stage import WORKER, Stage, StageError
from benchmarks.frame.celery_worker import celery_worker
from benchmarks.frame.environment import server_version
from benchmarks.frame.run import Run
from example_project.embedded import EmbeddedServer


class Player:
    """One guard; `result` has what was seen in each scenario, or the error that prevented it."""

    def __init__(self, slug: str) -> None:
        self.slug = slug
        self.result: dict[str, Any] = {"scenarios": {}, "missing": []}

    def play(self, names: list[str]) -> dict[str, Any]:
        """Play the scenarios; SIGTERM ends this early, with the result so far."""
        chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
        run = Run({f"{self.slug}: {each.name}": each.seconds for each in chosen})
        with run.interruptible(signal.SIGTERM, then=signal.SIG_IGN), EmbeddedServer() as server:
            os.environ |= {PORT: str(server.port), SLUG: self.slug}
            with Redis.from_url(server.url(LOCKS)) as admin:
                self.result["server"] = server_version(admin)
            try:
                self._play_all(run, chosen)
            except Exception as error:
                self.result["error"] = f"{type(error).__name__}: {error}"
        self.result["missing"] = run.missing
        return self.result

    def _play_all(self, run: Run, chosen: list[Scenario]) -> None:
        from benchmarks.celery_guards.app import app

        with celery_worker(*WORKER) as worker:
            for scenario in chosen:
                place = SCENARIOS.index(scenario) + 1
                stage = Stage(app, GUARDS[self.slug], worker, shop_id=100 * place)
                began = run.seconds
                title = f"{self.slug}: {scenario.name}"
                seen = run.part(title, lambda each=scenario, stage=stage: _seen(each, stage))
                if seen:
                    seen["took"] = round(run.seconds - began, 1)
                    self.result["scenarios"][scenario.name] = seen


def _seen(scenario: Scenario, stage: Stage) -> dict[str, Any]:
    stage.locks.flushdb()
    if not stage.has(scenario.task):
        return {"no_such_option": True}
    try:
        seen = asdict(scenario.play(stage, scenario.task))
    except StageError as error:
        seen = {"error": str(error)}
    stage.clean_up()
    return seen
