"""What traces and metrics for OpenTelemetry cost a lock, switched on and off in alternation."""

import gc
from time import monotonic
from typing import Any

from benchmarks.bench import Bench, Chart, Scenario, Seat, warm
from benchmarks.contenders import Ours
from benchmarks.frame.figures import count_spread, middle_half, ratio_spread, ratios
from benchmarks.frame.table import Column
from benchmarks.scenarios import contended, uncontended

OFF = "off"
KINDS = {
    OFF: "off",
    "noop": "on, without an SDK",
    "unsampled": "SDK, below a span that is not sampled",
    "metrics": "SDK, metrics alone",
    "spans": "SDK, every span recorded",
    "all": "SDK, every span and metrics",
}
"""The title of each row."""


def switch(seat: Seat, kind: str) -> None:
    """Switch the instrumentation off, and on again in another way.

    The notes of the seat are then the providers, and the span below which locks are taken.
    """
    from opentelemetry import trace

    from django_redis_lock.contrib.opentelemetry import LockInstrumentor

    LockInstrumentor().uninstrument()
    providers = seat.notes[0] if seat.notes else _providers()
    tracers, unsampled, meters, noop_tracers, noop_meters = providers
    span = trace.INVALID_SPAN
    if kind != OFF:
        LockInstrumentor().instrument(
            tracer_provider=noop_tracers if kind in ("noop", "metrics") else tracers,
            meter_provider=meters if kind in ("metrics", "all") else noop_meters,
        )
    if kind in ("unsampled", "spans", "all"):
        span = (
            (unsampled if kind == "unsampled" else tracers).get_tracer("bench").start_span("view")
        )
    seat.notes = [providers, span]
    gc.collect()


def _providers() -> tuple[Any, ...]:
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
    from opentelemetry.trace import NoOpTracerProvider

    class Nowhere(SpanExporter):
        """Drops the spans, whose way to a collector is not the lock's."""

        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    meters = MeterProvider([InMemoryMetricReader()])
    return tracers, unsampled, meters, NoOpTracerProvider(), NoOpMeterProvider()


def pairs(seat: Seat, prefix: str, seconds: float) -> float:
    """Return the uncontended pairs per second, below a span as in a view."""
    from opentelemetry.trace import use_span

    with use_span(seat.notes[1]):
        return uncontended.pairs(seat, prefix, seconds)


def hammer(seat: Seat, *arguments: Any) -> int:
    """Return how often this process got a lock that another wants as well."""
    from opentelemetry.trace import use_span

    with use_span(seat.notes[1]):
        return contended.hammer(seat, *arguments)


def measure(bench: Bench) -> None:
    sizes = bench.sizes
    with bench.crews([Ours.slug], 2) as crews:
        (crew,) = crews.values()
        for worker in crew.workers:
            worker.call(warm)

        def once(kind: str, turn: int) -> tuple[float, float]:
            for worker in crew.workers:
                worker.call(switch, kind)
            name = f"bench:{kind}:{turn}"
            alone = float(crew.turn(turn).call(pairs, name, sizes.overhead_seconds))
            start = monotonic() + 0.05
            end = start + sizes.overhead_seconds
            return alone, sum(crew.together(hammer, name, start, end)) / sizes.overhead_seconds

        for kind in KINDS:
            once(kind, -1)  # untimed: imports, listeners
        found = bench.run.rounds(sizes.overhead_rounds, list(KINDS), once)
    for kind, title in KINDS.items():
        alone, both = ([each[place] for each in found[kind]] for place in (0, 1))
        base = [[each[place] for each in found[OFF]] for place in (0, 1)]
        bench.rows[kind] = {
            "title": title,
            "pairs_per_second": middle_half(alone),
            "ratio": ratios(alone, base[0], middle_half),
            "contended_per_second": middle_half(both),
            "contended_ratio": ratios(both, base[1], middle_half),
            "rounds": found[kind],
        }


SCENARIO = Scenario(
    name="tracing",
    title="The cost of traces and metrics for OpenTelemetry",
    how=(
        "Uncontended pairs of acquire and release in one process, and acquisitions of one lock "
        "that two processes want all the time. The instrumentation is switched in alternation, "
        "{overhead_rounds} rounds of {overhead_seconds:g} s each; ratios are taken within each "
        "round, to it being off: median (middle half). Exported spans go nowhere. A recorded wait "
        "asks who has the lock, which is one more round trip."
    ),
    measure=measure,
    seconds=lambda sizes: (
        5 + (sizes.overhead_rounds + 1) * len(KINDS) * (2 * sizes.overhead_seconds + 0.1)
    ),
    columns=(
        Column("pairs_per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to off", ratio_spread),
        Column("contended_per_second", "contended, acquisitions/s", count_spread),
        Column("contended_ratio", "ratio to off", ratio_spread),
    ),
    charts=(Chart("pairs_per_second.median", "pairs per second; higher is better"),),
)
