"""Our locks for the tests of other libraries, and the plugin that judges them.

``python -m nox -s peers`` runs the tests unchanged. ``inapplicable.toml`` lists which can't pass.
"""

import os
import tomllib
from functools import cache
from pathlib import Path

import django
import pytest
from django.conf import settings

from django_redis_lock.backends.redis import RedisLockBackend
from example_project.embedded import EmbeddedServer

settings.configure(INSTALLED_APPS=["django_redis_lock"])
django.setup()
make = cache(lambda url: RedisLockBackend(url, {"LOCATION": url}))


def backend_of(client):
    """Return the backend on the server of a client."""
    given = client.connection_pool.connection_kwargs
    url = "unix://{path}" if "path" in given else "redis://{host}:{port}"
    return make(url.format(**given))


class Judge:
    """Expects the inapplicable tests to fail, and all others, so many at least, to pass."""

    def __init__(self, passing, inapplicable):
        self.least, self.passed = passing, 0
        self.reasons = {name: why for why, names in inapplicable.items() for name in names}

    def pytest_collection_modifyitems(self, items):
        if unknown := self.reasons.keys() - {item.originalname for item in items}:
            raise pytest.UsageError(f"inapplicable.toml names tests that do not exist: {unknown}")
        for item in items:
            if why := self.reasons.get(item.originalname):
                # Strict: a listed test that passes fails the run, so the list stays true.
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.passed

    def pytest_sessionfinish(self, exitstatus):
        if not exitstatus and self.passed < self.least:
            raise pytest.UsageError(f"{self.passed} tests passed of {self.least} that have to")


def pytest_configure(config):
    if os.environ["PEER"] == "redis":
        import as_redis_py  # noqa: F401 - puts our locks in place of theirs

        server = EmbeddedServer()
        server.start()
        config.add_cleanup(server.stop)
        config.option.redis_url = server.url()
    known = tomllib.loads(Path(__file__).with_name("inapplicable.toml").read_text())
    config.pluginmanager.register(Judge(**known[os.environ["PEER"]]))
