"""What the system says of processes."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CLOCK = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def group(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if int(_stat(int(path.name))[2]) == leader:
                found.append(int(path.name))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that some processes have used."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            ticks += sum(map(int, _stat(pid)[11:13]))
    return ticks / CLOCK


def family_cpu_seconds() -> float:
    """Return the CPU time of this process, its descendants, and those that have ended."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stats[int(path.name)] = _stat(int(path.name))
    family = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in family} - family:
        family |= more
    return sum(sum(map(int, stats[pid][11:15])) for pid in family if pid in stats) / CLOCK


def peak_memory(pids: Iterable[int]) -> float:
    """Return the largest peak of resident memory of some processes, in MB."""
    return max(
        int(line.split()[1]) / 1024
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
