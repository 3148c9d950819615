"""Child processes that never outlive the process that started them.

A process killed by SIGKILL cannot clean up. So a small second process, the keeper, reads from a
pipe that only this process writes to. When this process ends, for whatever reason, the pipe closes.
The keeper then kills the child processes, removes their directories, and ends.

The keeper runs this file as a script, with only the standard library.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

# The child waits for a line before it runs the command, so the keeper knows its pid first.
_WAIT_FOR_GO = 'read -r _ && exec "$@"'
_REMOVAL_SECONDS = 5.0


class Keeper:
    """Starts child processes, and ends them when this process ends.

    Each has its own session, so a Ctrl-C in the terminal does not reach it. A forked child of this
    process does not own them: there, `stop` and `close` do nothing.
    """

    def __init__(self, *directories: str | Path) -> None:
        self._directories = [str(directory) for directory in directories]
        self._children: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *self._directories],
            stdin=subprocess.PIPE,
            bufsize=0,  # no buffer, so no lock that a fork could leave locked
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        _keepers.add(self)

    def spawn(self, *command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """Start `command`; `options` go to `subprocess.Popen`."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT_FOR_GO, "sh", *map(str, command)],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **options,
        )
        self._children.append(process)
        self._tell(f"+{process.pid}")
        _send(process, "go", last=True)
        return process

    def stop(self, *processes: subprocess.Popen[bytes], grace: float = 5.0) -> None:
        """Ask `processes` to end within `grace` seconds, then kill their process groups."""
        ours = [process for process in processes if process in self._children]
        if self._closed or not ours:
            return
        if grace > 0:
            for process in ours:
                _ask_to_end(process)
        deadline = time.monotonic() + grace
        for process in ours:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
            _kill_group(process.pid)
            process.wait()
            self._tell(f"-{process.pid}")
            self._children.remove(process)

    def close(self) -> None:
        """Kill the remaining processes, and wait until the directories are removed."""
        if self._closed:
            return
        self.stop(*self._children, grace=0)
        self._closed = True
        _keepers.discard(self)
        _hang_up(self._process)
        self._process.wait()
        for directory in self._directories:  # in case the keeper was killed
            shutil.rmtree(directory, ignore_errors=True)

    def _tell(self, line: str) -> None:
        _send(self._process, line)

    def _disown(self) -> None:
        """In a forked child, close the pipe, so that only the parent keeps it open."""
        self._closed = True
        for process in (self._process, *self._children):
            _hang_up(process)
            process.returncode = 0  # not ours to wait for, so no ResourceWarning


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _disown_all() -> None:
    for keeper in list(_keepers):
        keeper._disown()
    _keepers.clear()


os.register_at_fork(after_in_child=_disown_all)


def _send(process: subprocess.Popen[bytes], line: str, *, last: bool = False) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the process has ended, as `wait` will show
        process.stdin.write(f"{line}\n".encode())
    if last:
        _hang_up(process)


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)  # a paused process handles SIGTERM when it resumes


def _kill_group(pid: int) -> None:
    # The group outlives its leader. macOS answers EPERM for one whose members are all zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove(directory: str) -> None:
    """Remove `directory`, even if a process just killed is still writing a file there."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while Path(directory).exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        if Path(directory).exists():
            time.sleep(0.02)


def _keep(directories: list[str]) -> None:
    """Be the keeper: collect pids until the pipe closes, then kill and remove what is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        if line.startswith("+"):
            groups.add(pid)
        else:
            groups.discard(pid)
    for pid in groups:
        _kill_group(pid)
    for directory in directories:
        _remove(directory)


if __name__ == "__main__":
    _keep(sys.argv[1:])
