"""Exceptions from signal handlers, at each place where Python may run one."""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from tests.tools import Background


class Interrupted(BaseException):
    """What a signal handler raises."""


class Interruption:
    """Raises ``Interrupted`` at the n-th place in the code of some modules.

    Places are those where Python runs signal handlers: as a function begins, after a call within
    it (but not while it enters a ``with``), and where a loop begins anew.
    Python 3.11 never forgets the exception that is being handled at such a place, so give no module
    that handles some there, or use ``strike()``.
    """

    def __init__(self, at: int, *modules: ModuleType) -> None:
        self._left = at
        self._files = {module.__file__ for module in modules}
        self._last: dict[FrameType, str] = {}
        self.raised = False
        self.place = ""
        """The function, if it is its first line."""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        self._last.clear()  # frames keep what is local to them

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "call":
            frame.f_trace = self._trace  # without which Python 3.13 does not trace opcodes
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._may_raise(frame.f_code.co_name)
        elif event == "opcode":
            last = self._last.get(frame, "")
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._last[frame] = "ENTER" if last == "LOAD_SPECIAL" else name
            if last.startswith(("CALL", "JUMP_BACKWARD")):
                self._may_raise()
        return self._trace

    def _may_raise(self, place: str = "") -> None:
        self._left -= 1
        if self._left == -1:
            self.raised, self.place = True, place
            raise Interrupted


def strike(interruption: Interruption, function: Callable[[], object]) -> None:
    """Interrupt a function, in a thread whose end has Python forget the exception."""

    def run() -> None:
        with contextlib.suppress(Interrupted), interruption:
            function()

    Background(run).outcome()
