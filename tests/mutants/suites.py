"""Which tests run against a mutant of a script, the quickest first."""

from __future__ import annotations

QUICK = ("tests/backends/test_machine.py::test_locks_on_a_server",)
"""Kills most mutants in seconds."""
_LOCK = (
    "tests/backends/test_contract.py::TestRedis",
    "tests/transport/test_posting.py",
    "tests/transport/test_stopped_waiters.py",
    "tests/transport/test_waiting.py",
    "tests/transport/test_hostile.py",
    "tests/transport/test_waiting_schemes.py",
    "tests/transport/test_faults.py",
    "tests/protocol/test_refusals.py",
)
_OPERATORS = (
    "tests/backends/test_index.py",
    "tests/transport/test_audit.py",
    "tests/backends/test_contract.py::TestRedis",
    "tests/transport/test_hostile.py",
    "tests/protocol/test_refusals.py",
)
_SUITES = {
    **dict.fromkeys(
        ("acquire_many", "many", "release_many"), ("tests/primitives/test_lock_many.py", *_LOCK)
    ),
    **dict.fromkeys(("force_release", "history", "index", "inspect", "note_losses"), _OPERATORS),
}


def suite(script: str) -> tuple[str, ...]:
    """Return the tests of a script that may kill what the quick ones do not."""
    if script.startswith("quorum_"):
        return ("tests/backends/redlock",)
    return _SUITES.get(script, _LOCK)
