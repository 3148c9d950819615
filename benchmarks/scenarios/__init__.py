"""What is measured, in the order of the report."""

from . import (
    contended,
    guarded,
    handoff,
    layouts,
    listing,
    memory,
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
    guarded.SCENARIO,
    layouts.SCENARIO,
)
