"""Semaphores: what a permit costs beside a lock, and how a hand-built one does in a crowd."""

from __future__ import annotations

from time import monotonic, monotonic_ns, sleep
from typing import Any

from benchmarks.contenders import BOOK, OURS, PERMIT, TOKEN, Contender
from benchmarks.scenarios import (
    CROWD,
    Bench,
    Figures,
    hand_off,
    hold_many,
    holders,
    medians,
    pairs,
    server_seconds,
)
from benchmarks.workers import together

MANY = 1000
HOLD = 0.01
"""Seconds that a permit is held where the order counts."""
APART = 5_000_000
"""Nanoseconds: two that came, or were served, within less came, or were served, together."""
Visit = tuple[int, int]
"""When one asked, and when it was let in, by the clock that all processes share (ns)."""


def hold_permits(contender: Contender, name: str, count: int) -> None:
    contender.places = count + 1
    contender.held = [contender.lock(name) for _ in range(count)]
    for handle in contender.held:
        handle.acquire()


def release_held(contender: Contender) -> None:
    for handle in contender.held:
        handle.release()


def pairs_of_one(contender: Contender, name: str, count: int) -> None:
    for _ in range(count):
        handle = contender.lock(name)
        handle.acquire()
        handle.release()


def permits(bench: Bench) -> Figures:
    """Take and release a free permit, and one beside 999 others; list a thousand holders."""
    slugs = [OURS, PERMIT, BOOK]
    count = 200 if bench.quick else 1000
    with bench.crews(slugs) as crews:

        def served(slug: str, function: Any, *args: Any) -> tuple[float, Any]:
            before = server_seconds(bench.admin)
            answer = crews[slug][0].call(function, *args)
            return 1e6 * (server_seconds(bench.admin) - before) / count, answer

        def measure(slug: str, turn: int) -> dict[str, float]:
            (worker,), name = crews[slug], f"{slug}:{turn}"
            server, (took, used) = served(slug, pairs, name, count, 0.0)
            figures = {"pairs/s": count / took, "client µs": 1e6 * used / count}
            figures["server µs"] = server
            if slug != OURS:
                worker.call(hold_permits, name, MANY - 1)
                last, _ = served(slug, pairs_of_one, name, count)
                figures["1,000th / first"] = last / server
                worker.call(release_held)
            if slug != BOOK:
                worker.call(*((hold_many, MANY) if slug == OURS else (hold_permits, name, MANY)))
                figures["list ms"] = 1e3 * worker.call(holders, MANY)
                worker.call(release_held)
            return figures

        found = bench.compare(slugs, measure)
    return medians(found, **{"client µs": OURS, "server µs": OURS, "list ms": OURS})


def permit_hand_off(bench: Bench) -> Figures:
    """Release one of three permits for which another process waits: milliseconds until then."""
    return hand_off(bench, OURS, PERMIT, BOOK, TOKEN)


def visit(contender: Contender, name: str, start: float, end: float, hold: float) -> list[Visit]:
    """Take and release permits between two moments that all share."""
    visits = []
    sleep(max(0.0, start - monotonic()))
    while monotonic() < end:
        asked, handle = monotonic_ns(), contender.lock(name)
        handle.acquire()
        visits.append((asked, monotonic_ns()))
        if hold:
            sleep(hold)
        handle.release()
    return visits


def overtaken(visits: list[Visit], served_apart: int = APART) -> float:
    """Return the part of the pairs that waited together of which the later one was let in first."""
    visits, met, swapped = sorted(visits), 0, 0
    for number, (asked, got) in enumerate(visits):
        for later, later_got in visits[number + 1 :]:
            if later >= got:
                break
            met += later - asked >= APART
            swapped += later - asked >= APART and got - later_got >= served_apart
    return swapped / max(1, met)


def permit_crowd(bench: Bench) -> Figures:
    """Eight processes want one of three permits, for nothing, or for 10 ms: shares, and order."""
    slugs = [PERMIT, BOOK]
    seconds = 0.5 if bench.quick else 1.5
    with bench.crews(slugs, CROWD) as crews:

        def visits(slug: str, name: str, hold: float) -> list[list[Visit]]:
            start = monotonic() + 0.1
            found: list[list[Visit]] = together(
                crews[slug], visit, name, start, start + seconds, hold
            )
            return found

        def measure(slug: str, turn: int) -> dict[str, float]:
            rushed = visits(slug, f"{slug}:{turn}", 0)
            held = visits(slug, f"{slug}:{turn}:held", HOLD)
            served = [len(each) for each in held]
            return {
                "permits/s": sum(len(each) for each in rushed) / seconds,
                "least / most": min(served) / max(served),
                "overtaken %": 100 * overtaken([each for some in held for each in some]),
            }

        return medians(bench.compare(slugs, measure))
