"""The pytest plugin. It imports only what it needs, as pytest loads it for every project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django_redis_lock.testing import LockRecorder, LockSpace

SPACES = ("memory", "settings")
_session: pytest.StashKey[LockSpace] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("django-redis-lock")
    group.addoption(
        "--lock-space",
        choices=SPACES,
        help="where tests keep their locks: in memory, or as set in LOCKS; overrides lock_space "
        "of the configuration file",
    )
    group.addoption(
        "--fail-on-held-locks",
        action="store_true",
        default=None,
        help="fail tests that leave a lock held, as fail_on_held_locks = true does",
    )
    parser.addini("lock_space", "where tests keep their locks (memory or settings)")
    parser.addini("fail_on_held_locks", "fail tests that leave a lock held", type="bool")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "locks(space=..., fail_on_held=...): keep the locks of a test in another space (memory or "
        "settings), or allow it to leave locks held (or not).",
    )
    space = config.getini("lock_space")
    if space and space not in SPACES:
        raise pytest.UsageError(f"lock_space = {space} is unknown: use one of {', '.join(SPACES)}.")


def pytest_sessionstart(session: pytest.Session) -> None:
    space = _option(session.config, "lock_space")
    if space or _option(session.config, "fail_on_held_locks"):
        from django_redis_lock.testing import LockSpace

        entered = session.config.stash[_session] = LockSpace(space or "settings").__enter__()
        session.config.add_cleanup(entered.__exit__)


@pytest.fixture(autouse=True)
def _locks_of_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing behind. Fixtures of a wider scope come before it, so their locks stay."""
    space = request.config.stash.get(_session, None)
    wanted, fail = _marked(request.node)
    if fail is None:
        fail = bool(_option(request.config, "fail_on_held_locks"))
    with ExitStack() as stack:
        if wanted is not None and (space is None or wanted != space.kind):
            from django_redis_lock.testing import LockSpace

            space = stack.enter_context(LockSpace(wanted))
        try:
            with nullcontext() if space is None else space.one_test(fail_on_held=fail):
                yield
        except AssertionError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None


def _option(config: pytest.Config, name: str) -> Any:
    given = config.getoption(name)
    return config.getini(name) if given is None else given


def _marked(node: Any) -> tuple[Any, bool | None]:
    """Return what the markers of a test say of its space and of locks that it leaves."""
    said: dict[str, Any] = {}
    for marker in node.iter_markers("locks"):  # the closest one first
        unknown = sorted(set(marker.kwargs) - {"space", "fail_on_held"})
        if marker.args or unknown or marker.kwargs.get("space", "memory") not in SPACES:
            raise pytest.UsageError(
                f"{node.nodeid}: {marker} is invalid. Use space="
                f"{' or '.join(map(repr, SPACES))}, and fail_on_held=True or False."
            )
        said = {**marker.kwargs, **said}
    return said.get("space"), said.get("fail_on_held")


@pytest.fixture
def recorded_locks() -> Iterator[LockRecorder]:
    """What happens to locks during the test, as a ``LockRecorder``."""
    from django_redis_lock.testing import LockRecorder

    with LockRecorder() as recorder:
        yield recorder
