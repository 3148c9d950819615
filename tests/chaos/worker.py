"""One process of callers: ``python -m tests.chaos.worker PLAN NUMBER ROLE``."""

from __future__ import annotations

import json
import sys

from django_redis_lock.transport import listener
from tests.chaos.plan import Plan
from tests.soak import worker
from tests.soak.plan import Role

LISTENS_FOR = 1.0
"""Seconds of silence after which a listening connection is asked whether it lives, and then again
for its answer; a run is over before the usual ones have passed."""


def main(plan: Plan, number: int, role: Role) -> None:
    """Run the callers until the end of the run."""
    listener.SILENCE = listener.PATIENCE = LISTENS_FOR
    worker.main(plan, number, role)


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]), int(sys.argv[2]), Role(**json.loads(sys.argv[3])))
