"""The tests of django-redis-lock."""

import pytest

pytest.register_assert_rewrite("tests.contract", "tests.tools")
