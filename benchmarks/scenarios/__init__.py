"""What is measured, in the order of the report."""

from benchmarks.scenarios import (
    contended,
    guarded,
    handoff,
    layouts,
    listing,
    memory,
    operators,
    processor,
    traffic,
    uncontended,
    waiting,
)

SCENARIOS = tuple(
    module.SCENARIO
    for module in (
        uncontended,
        traffic,
        processor,
        handoff,
        contended,
        waiting,
        listing,
        memory,
        operators,
        guarded,
        layouts,
    )
)
