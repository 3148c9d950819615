"""One process of callers: ``python -m tests.chaos.worker PLAN NUMBER KIND``."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import random
import sys
import threading

import django
from django.conf import settings

from tests.chaos.attempt import record_signals
from tests.chaos.caller import Caller
from tests.chaos.heartbeat import Heartbeat
from tests.chaos.history import Recorder
from tests.chaos.means import Awaiting, Blocking, Means, run_blocking
from tests.chaos.plan import CALLERS, TASKS, Plan


def set_up(plan: Plan) -> None:
    settings.configure(**plan.settings, INSTALLED_APPS=["django_redis_lock"])
    django.setup()


def main(plan: Plan, number: int, kind: str) -> None:
    faulthandler.enable()  # the driver aborts a process that hangs, to see where
    logging.basicConfig(level=logging.WARNING, format="%(threadName)s %(name)s %(message)s")
    set_up(plan)
    from django_redis_lock import locks

    locks["default"].registry_for("")  # imports it now: no request has to wait for that
    record_signals()
    recorder = Recorder(plan.directory, number)

    def caller(index: int, means: Means) -> Caller:
        return Caller(plan, recorder, means, random.Random(f"{plan.seed}/{number}/{index}"))

    async def as_tasks() -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(CALLERS):
                group.create_task(caller(index, Awaiting()).run(), name=f"caller-{index}")

    def in_thread(index: int) -> None:
        run_blocking(caller(index, Blocking()).run())

    with Heartbeat(recorder):
        if kind == TASKS:
            asyncio.run(as_tasks())
            return
        threads = [
            threading.Thread(target=in_thread, args=(index,), name=f"caller-{index}")
            for index in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
