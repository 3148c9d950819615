"""What the benchmark of stopped holders counts, from records by hand."""

from __future__ import annotations

import pytest

from benchmarks.semaphores import APART, overtaken
from benchmarks.stopped import Request, late, lost, undisturbed


@pytest.mark.parametrize(
    ("updates", "last", "counts"),
    [
        ([(0, 1, ""), (1, 2, "")], 2, (0, 0)),
        ([(0, 1, ""), (1, 2, ""), (0, 3, "")], 3, (2, 1)),  # stopped, and written over the others
        ([(0, 1, ""), (1, 2, ""), (0, 3, "LockLost")], 2, (0, 1)),  # and overwritten
        ([(0, 1, ""), (1, 2, ""), (1, 3, "")], 3, (1, 1)),
    ],
)
def test_updates_are_lost_if_the_last_is_not_built_on_them(
    updates: list[tuple[int, int, str]], last: int, counts: tuple[int, int]
) -> None:
    """Each has the version that it read, its own, and its error."""
    requests = [Request(1, 2, seen, own, True, error) for seen, own, error in updates]
    assert (lost(requests, last), late(requests)) == counts


def test_a_pair_is_overtaken_if_the_later_one_was_served_first() -> None:
    """Three wait at once; then the process of the last one is stopped while it waits."""
    times = [(0, 6 * APART), (2 * APART, 4 * APART), (3 * APART, 8 * APART)]
    requests = [Request(asked, got, 0, 1, True, "") for asked, got in times]
    assert overtaken(undisturbed(requests, [])) == 1 / 3
    assert overtaken(undisturbed(requests, [(7 * APART, 9 * APART)])) == 1
