"""The tests of django-redis-lock."""

import pytest

pytest.register_assert_rewrite("tests.contracts.locks", "tests.contracts.exits", "tests.tools")
