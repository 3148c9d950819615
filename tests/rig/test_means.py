"""What interrupts a caller that blocks, and what does not."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

import pytest

from tests.rig.means import Blocking, GaveUp, run_blocking
from tests.tools import handling


class Waiting:
    """Stands in for a lock that nobody gets."""

    def acquire(self) -> None:
        while True:
            pass  # ``signal.pause`` would miss an alarm that comes just before it


def test_an_alarm_interrupts_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may call a signal handler when the call that it should interrupt has ended."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    lock: Any = Waiting()
    with handling(signal.SIGALRM, signal.default_int_handler):
        means = Blocking()
        for _ in range(2):
            with pytest.raises(GaveUp):
                run_blocking(means.give_up(lock, "acquire", 0.001))
            signal.raise_signal(signal.SIGALRM)
            assert gc.isenabled()
