"""One process of callers: ``python -m tests.soak.worker PLAN NUMBER ROLE``."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import random
import signal
import sys
import threading

import django
from django.conf import settings

from tests.soak import heartbeat
from tests.soak.attempt import watch_line
from tests.soak.behaviour import Caller
from tests.soak.history import Recorder
from tests.soak.means import Awaiting, Blocking, Means, run_blocking
from tests.soak.plan import TASKS, Plan, Role


def main(plan: Plan, number: int, role: Role) -> None:
    """Run the callers until the end of the run."""
    faulthandler.register(signal.SIGUSR1)  # the driver asks who hangs where
    logging.basicConfig(level=logging.WARNING, format="%(threadName)s %(name)s %(message)s")
    settings.configure(**plan.settings(), INSTALLED_APPS=["django_redis_lock"])
    django.setup()
    from django_redis_lock import locks

    watch_line(locks["default"].hub)  # and imported now, so that no request has to wait for that
    recorder = Recorder(plan.directory, number)
    pulse = heartbeat.of_process(recorder)
    pulse.start()
    crowd = _Crowd(plan, recorder, number, role)
    if role.kind == TASKS:
        asyncio.run(crowd.as_tasks())
    else:
        crowd.as_threads()
    pulse.stop()
    recorder.note("ended")


class _Crowd:
    """The callers of this process."""

    def __init__(self, plan: Plan, recorder: Recorder, number: int, role: Role) -> None:
        self._plan = plan
        self._recorder = recorder
        self._number = number
        self._role = role

    async def as_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self._role.callers):
                group.create_task(self._caller(index, Awaiting()).run(), name=f"caller-{index}")

    def as_threads(self) -> None:
        """Run the first caller in this thread, for signals interrupt the main thread only."""
        threads = [
            threading.Thread(target=self._run_blocking, args=(index,), name=f"caller-{index}")
            for index in range(1, self._role.callers)
        ]
        for thread in threads:
            thread.start()
        self._run_blocking(0)
        for thread in threads:
            thread.join()

    def _run_blocking(self, index: int) -> None:
        run_blocking(self._caller(index, Blocking()).run())

    def _caller(self, index: int, means: Means) -> Caller:
        dice = random.Random(f"{self._plan.seed}/{self._number}/{index}")
        quiet = self._role.quiet
        return Caller(
            self._plan, self._recorder, means, dice, quiet=quiet, hasty=index == 0 and not quiet
        )


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]), int(sys.argv[2]), Role(**json.loads(sys.argv[3])))
