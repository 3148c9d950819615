"""A real Celery worker in processes of its own."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from example_project.keeper import Keeper
from example_project.service import Service, start_worker

READY = " ready."


@contextmanager
def celery_worker(app: str, *options: str) -> Iterator[Service]:
    """Start a worker of the app in a module, and wait until it takes tasks."""
    directory = Path(tempfile.mkdtemp(prefix="celery-"))
    keeper = Keeper(directory)
    try:
        env = {**os.environ, "PYTHONDEVMODE": ""}
        worker = start_worker(keeper, directory, app, *options, env=env)
        worker.wait_for(lambda: worker.count(READY) > 0)
        yield worker
        worker.stop()
    finally:
        keeper.close()


def restart(worker: Service) -> None:
    """Start a killed worker again, and wait until it takes tasks."""
    before = worker.count(READY)
    worker.start()
    worker.wait_for(lambda: worker.count(READY) > before)
