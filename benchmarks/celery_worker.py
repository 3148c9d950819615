"""A real Celery worker in processes of its own, which ends with the benchmark."""

import os
import secrets
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from example_project.keeper import Keeper

from .server import wait_until

ROOT = Path(__file__).parent.parent
START_SECONDS = 60
LOG_TAIL_LINES = 15


class CeleryWorkerError(RuntimeError):
    """The worker did not become ready; the message ends with the tail of its log."""


class CeleryWorker:
    """A prefork worker of the app in a module, ready when the `with` block is entered."""

    def __init__(self, module: str, environment: dict[str, str], *options: str) -> None:
        self._module = module
        self._environment = {**os.environ, "PYTHONDEVMODE": "", **environment}
        self._options = options
        self._directory = tempfile.mkdtemp(prefix="celery-")
        self._log = Path(self._directory) / "worker.log"
        self._keeper: Any = None
        self._process: Any = None

    def __enter__(self) -> Self:
        self._keeper = Keeper(self._directory)
        try:
            self.start()
        except BaseException:
            self._keeper.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._keeper.close()

    def twin(self) -> "CeleryWorker":
        """Return another worker like this one, not yet started."""
        return CeleryWorker(self._module, self._environment, *self._options)

    def start(self) -> None:
        """Start it and wait until it takes tasks."""
        before = self.count(" ready.")
        with self._log.open("ab") as log:
            self._process = self._keeper.spawn(
                *(sys.executable, "-m", "celery", "-A", self._module, "worker"),
                *("--pool", "prefork", "--without-gossip", "--without-mingle"),
                *("--hostname", f"{secrets.token_hex(4)}@%h", *self._options),
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: self._is_ready(before), "a worker's readiness", START_SECONDS)
        except (TimeoutError, CeleryWorkerError) as error:
            raise CeleryWorkerError(f"{error}\n{self._tail()}") from None

    def stop(self, grace: float = 5.0) -> None:
        """Ask it to end, and kill it and its children if it does not."""
        if self._process is not None:
            self._keeper.stop(self._process, grace=grace)
            self._process = None

    def kill(self) -> None:
        """Let the worker and its children die at once, as in a power cut."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.stop(grace=0)

    def count(self, *words: str) -> int:
        """Return how many lines of its log hold all these words."""
        if not self._log.exists():
            return 0
        lines = self._log.read_text(errors="replace").splitlines()
        return sum(all(word in line for word in words) for line in lines)

    def cpu_seconds(self) -> float:
        """Return the processor time that the worker and its children have taken so far."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it ended just now
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:  # its group
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _is_ready(self, before: int) -> bool:
        if self._process.poll() is not None:
            raise CeleryWorkerError(f"the worker ended with status {self._process.returncode}")
        return self.count(" ready.") > before

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
