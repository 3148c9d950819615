"""What is measured, in the order of the report."""

from importlib import import_module

from benchmarks.bench import Scenario

NAMES = (
    *("uncontended", "traffic", "processor", "handoff", "contended", "waiting"),
    *("listing", "memory", "operators", "guarded", "layouts"),
    *("metrics", "contention", "tracing"),
)
SCENARIOS: tuple[Scenario, ...] = tuple(
    import_module(f"benchmarks.scenarios.{name}").SCENARIO for name in NAMES
)
