"""Series of a real run, as input for ``promtool test rules``.

A run is over in a minute or two, and most alerts wait for longer. So the series of an incident goes
on, after its worst moment, as the incident would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.observability.stage import Stage

HEAD = """# What happened in a run of the shop, second by second, and which alerts fire. Written by
# make observability ARGS=--record. After its worst moment each incident goes on as it began.
rule_files: [{rules}]
evaluation_interval: 1s
tests:
"""
TEST = """  - name: {alert}
    interval: 1s
    input_series:
      - series: '{series}'
        values: '{values}'
    promql_expr_test:
      - expr: &firing 'count by (group) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
        eval_time: {quiet}s
        exp_samples: []
      - expr: *firing
        eval_time: {fires}s
        exp_samples: [{{labels: '{labels}', value: 1}}]
"""


@dataclass(frozen=True)
class Incident:
    """The series that an alert is about, and how it goes on."""

    alert: str
    metric: str
    group: str
    worst: Any
    """``max`` or ``min``: which value ends what is taken of the run."""
    goes_on: str
    seconds: int
    """After how many seconds more the alert fires."""


INCIDENTS = (
    Incident("LockHeldTooLong", "oldest_hold_seconds", "product", max, "+1", 970),
    Incident("LockWaitTooLong", "oldest_wait_seconds", "product", max, "+1", 70),
    Incident("LockQueueGrowing", "waiting", "product", max, "+1", 320),
    Incident("LocksLost", "lost_total", "product", max, "+0", 5),
    Incident("LockServerUnavailable", "server_up", "", min, "+0", 65),
    Incident("LockRenewalLate", "lease_used_ratio", "import", max, "+0", 1),
)


def of(stage: Stage, rules: str) -> str:
    """Return the file, with the path of the rules in it."""
    return HEAD.format(rules=rules) + "".join(_test(stage, each) for each in INCIDENTS)


def _test(stage: Stage, incident: Incident) -> str:
    labels = {"using": "default", "backend": "RedisLockBackend", "job": "shop"}
    if incident.group:
        labels["group"] = incident.group
    chosen = ",".join(f'{name}="{value}"' for name, value in labels.items())
    series = f"django_redis_lock_{incident.metric}{{{chosen}}}"
    (found,) = stage.prometheus.series(series, stage.begin, stage.end)
    at = {round(float(time) - stage.begin): float(value) for time, value in found["values"]}
    worst = incident.worst(at, key=at.__getitem__)
    values = [f"{at[second]:.4g}" if second in at else "_" for second in range(worst + 1)]
    begun = next(second for second in range(worst + 1) if second in at)
    text = " ".join([*values[:-1], f"{values[-1]}{incident.goes_on}x{incident.seconds}"])
    return TEST.format(
        alert=incident.alert,
        series=series,
        values=text,
        quiet=begun,
        fires=worst + incident.seconds,
        labels=f'{{group="{incident.group}"}}' if incident.group else "{}",
    )
