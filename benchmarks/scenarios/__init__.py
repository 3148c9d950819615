"""What is measured, in the order of the report."""

from . import (
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

SCENARIOS = (
    uncontended.SCENARIO,
    traffic.SCENARIO,
    processor.SCENARIO,
    handoff.SCENARIO,
    contended.SCENARIO,
    waiting.SCENARIO,
    listing.SCENARIO,
    memory.SCENARIO,
    operators.SCENARIO,
    guarded.SCENARIO,
    layouts.SCENARIO,
)
