"""The tests on old and new versions of everything: ``python -m nox``, or ``-s "versions(oldest)"``.

The product of all versions would be some hundred rows. These cover each version, each Python with
each Django that runs on it, the oldest and the newest redis-py with both sides of django-redis,
hiredis and the server, and the two corners: oldest of all and newest of all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import nox

nox.options.reuse_existing_virtualenvs = True
TOUCHED = (
    *("tests/admin", "tests/backends", "tests/celery", "tests/management", "tests/primitives"),
    *("tests/support", "tests/tasks", "tests/transport", "tests/views"),
    *("tests/test_handler.py", "tests/test_settings.py"),
)
"""The tests of what meets Django, redis-py, django-redis, Celery or the server."""


PYPROJECT = nox.project.load_toml()
OLDEST = tuple(
    item.replace(">=", "==")
    for item in (*PYPROJECT["project"]["dependencies"], *PYPROJECT["dependency-groups"]["broker"])
)


class Row(NamedTuple):
    """Versions that are tested together. A package without a version is the newest."""

    python: str
    packages: tuple[str, ...] = ()
    redis: bool = False
    """Whether the server is the system's Redis; otherwise it is the newest Valkey."""
    tests: tuple[str, ...] = TOUCHED


ROWS = {
    "oldest": Row("3.11", OLDEST, redis=True, tests=("tests",)),
    "3.11": Row("3.11", ("django~=5.2.0",)),
    "3.12-django-5.2": Row(
        "3.12",
        ("django~=5.2.0", "redis==5.2.*", "celery~=5.5.0", "kombu~=5.5.0", "hiredis"),
        redis=True,
    ),
    "3.12-django-6.0": Row(
        "3.12", ("django~=6.0.0", "redis", "django-redis==5.4.*", "celery~=5.7.0"), redis=True
    ),
    "3.12-django-6.1": Row(
        "3.12", ("django~=6.1.0", "redis~=6.4.0", "django-redis~=6.0.0", "celery~=5.6.0")
    ),
    "3.13-django-5.2": Row(
        "3.13", ("django~=5.2.0", "redis", "celery~=5.7.0", "hiredis"), redis=True
    ),
    "3.13-django-6.0": Row(
        "3.13",
        (
            *("django~=6.0.0", "redis==5.2.*", "django-redis==5.4.*"),
            *("celery~=5.6.0", "kombu~=5.6.0", "hiredis"),
        ),
    ),
    "3.13-django-6.1": Row("3.13", ("django~=6.1.0", "redis", "celery~=5.7.0"), redis=True),
    "newest": Row("3.13", ("hiredis",), tests=("tests",)),
}


@nox.session
@nox.parametrize("name", list(ROWS), ids=list(ROWS))
def versions(session: nox.Session, name: str) -> None:
    """Run the tests of a row."""
    row = ROWS[name]
    server = shutil.which("redis-server") if row.redis else ""
    if server is None:
        session.error("this row needs Redis: apt-get install redis-server")
    session.install("--editable", ".[celery]", "--group", "test", *row.packages)
    session.run(
        *("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", *row.tests),
        env={"PYTHONDEVMODE": "1", "LOCKS_TEST_SERVER": server},
    )


PEERS = {
    "redis": ("tests/test_lock.py", "tests/test_asyncio/test_lock.py"),
    "python-redis-lock": ("-pno:asyncio", "tests/test_redis_lock.py"),
}


@nox.session
def peers(session: nox.Session) -> None:
    """Run the tests of other lock libraries, from their source distributions, on our locks."""
    pinned, adapters = ("-c", "constraints.txt"), Path("tests/peers").absolute()
    session.install(*pinned, "--editable", ".[celery]", "--group", "peers")
    fetch = ("pip", "download", "--quiet", *pinned, "--no-deps", "--no-binary", ":all:", "--dest")
    run = ("python", "-m", "pytest", "-q", "-p", "ours", "-p", "no:django", "-p", "no:randomly")
    for package, tests in PEERS.items():
        source = Path(session.virtualenv.location, "peers", package)
        shutil.rmtree(source, ignore_errors=True)
        session.run(*fetch, str(source), package)
        (archive,) = source.glob("*.tar.gz")
        session.run("tar", "-xf", archive, "-C", source, "--strip-components=1", external=True)
        with session.chdir(source):
            session.run(*run, *tests, env={"PEER": package, "PYTHONPATH": str(adapters)})
