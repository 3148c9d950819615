"""Which versions are tested together: a row of the matrix for each set of them.

The product of all versions would be some hundred rows. These cover each version, the pairs that
``tests/project/test_versions.py`` names, and the two corners: oldest of all and newest of all.
"""

from __future__ import annotations

from dataclasses import dataclass

TOUCHED = (
    *("tests/admin", "tests/backends", "tests/celery", "tests/management", "tests/primitives"),
    *("tests/support", "tests/transport", "tests/views", "tests/test_fencing.py"),
    *("tests/test_handler.py", "tests/test_secrets.py", "tests/test_settings.py"),
    "tests/layouts/test_cluster.py",
)
"""The tests of what meets Django, redis-py, django-redis, Celery or the server."""

SHORT = (
    *("tests/celery/test_task.py", "tests/celery/test_checks.py", "tests/celery/test_keys.py"),
    *("tests/celery/test_marks.py", "tests/celery/test_moves.py", "tests/celery/test_queue.py"),
    *("tests/celery/test_entering.py", "tests/celery/test_sending.py", "tests/support"),
    *("tests/celery/test_private.py", "tests/celery/test_guard.py"),
    *("tests/transport/test_connections.py", "tests/transport/test_locations.py"),
    "tests/transport/test_redis_py.py",
    *("tests/backends/test_contract.py", "tests/admin/test_pages.py", "tests/test_handler.py"),
    *("tests/views/test_views.py", "tests/transport/test_failover.py"),
    "tests/layouts/test_cluster.py::test_moving_slot_delays_and_loses_nothing",
    "tests/layouts/test_cluster.py::test_one_caller_reads_for_all_who_are_sent_on",
)
"""The same in short, for each change."""

ALL = ("tests", "tests/layouts/test_cluster.py")


@dataclass(frozen=True)
class Row:
    """Versions that are tested together. A package without a version is the newest."""

    name: str
    pythons: tuple[str, ...]
    """The first of these that is there; ``3.14t`` is the free-threaded build."""
    packages: tuple[str, ...] = ()
    redis: bool = False
    """Whether the server is the system's Redis; otherwise it is the newest Valkey."""
    tests: tuple[str, ...] = TOUCHED
    required: bool = False
    """Whether its absence is an error, as that of the oldest Python is."""


ROWS = (
    Row(
        "oldest",
        ("3.11",),
        ("django==5.2", "redis==5.2.0", "django-redis==5.4.0", "celery==5.4.0", "kombu==5.3.4"),
        redis=True,
        tests=ALL,
        required=True,
    ),
    Row("3.11", ("3.11",), ("django~=5.2.0",)),
    Row(
        "3.12-django-5.2",
        ("3.12",),
        ("django~=5.2.0", "redis==5.2.*", "celery~=5.5.0", "kombu~=5.5.0", "hiredis"),
        redis=True,
    ),
    Row(
        "3.12-django-6.0",
        ("3.12",),
        ("django~=6.0.0", "redis", "django-redis==5.4.*", "celery~=5.7.0"),
        redis=True,
    ),
    Row(
        "3.12-django-6.1",
        ("3.12",),
        ("django~=6.1.0", "redis~=6.4.0", "django-redis~=6.0.0", "celery~=5.6.0"),
    ),
    Row(
        "3.13-django-5.2",
        ("3.13",),
        ("django~=5.2.0", "redis", "celery~=5.7.0", "hiredis"),
        redis=True,
    ),
    Row(
        "3.13-django-6.0",
        ("3.13",),
        (
            *("django~=6.0.0", "redis==5.2.*", "django-redis==5.4.*"),
            *("celery~=5.6.0", "kombu~=5.6.0", "hiredis"),
        ),
    ),
    Row("3.13-django-6.1", ("3.13",), ("django~=6.1.0", "redis", "celery~=5.7.0"), redis=True),
    Row("newest", ("3.14", "3.13", "3.12", "3.11"), ("hiredis",), tests=ALL),
    Row("free-threaded", ("3.14t", "3.13t")),
)
