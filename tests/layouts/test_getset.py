"""The SETNX and GETSET backend against the contract, with each form of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from example_project.embedded import EmbeddedServer
from tests.backends.getset.test_other_programs import exclude_each_other
from tests.contracts.capabilities import LACKS
from tests.contracts.locks import LayoutContract, LockContract

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
LACKS_HERE = LACKS["GetSetLockBackend"] | {"waiters"}


@pytest.fixture(autouse=True)
def _alias(server: EmbeddedServer, settings: Any, request: pytest.FixtureRequest) -> None:
    options = getattr(request.cls, "options", {})
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "getset": {"BACKEND": GETSET, "LOCATION": server.url(), "OPTIONS": options},
    }


class TestRecord(LockContract):
    """With values that tell whose they are."""

    using = "getset"
    lacks = LACKS_HERE
    options: ClassVar[dict[str, str]] = {}


class TestSeconds(LayoutContract):
    """With nothing but the time in whole seconds, as the documentation of SETNX has it."""

    using = "getset"
    lacks = LACKS_HERE | {"fencing", "passing", "records", "precision"}
    options: ClassVar[dict[str, str]] = {"FORMAT": "seconds"}


def test_many_programs_exclude_each_other(
    name: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Never two inside, of eight foreign and own processes, while many holders die."""
    exclude_each_other(server, name, tmp_path / "inside", pairs=4, sections=100, dead=50)
