"""The tests of django-redis-lock."""

from contextlib import suppress

with suppress(ModuleNotFoundError):  # as in benchmarks, which use RabbitMQ as the tests do
    import pytest

    pytest.register_assert_rewrite("tests.contracts.locks", "tests.contracts.exits", "tests.tools")
