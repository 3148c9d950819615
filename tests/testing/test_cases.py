"""The mixin for test cases, and the pages about tests."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from django.db import transaction
from django.test import SimpleTestCase, TestCase, override_settings

from django_redis_lock import Lock, lock, locks
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.testing import LockSpace, LockTestMixin, assert_no_locks_held, plugin
from tests.testing.project import GUIDE
from tests.tools.docs import DOCS, blocks, table


def outcome(*cases: type[unittest.TestCase]) -> unittest.TestResult:
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)
    result = unittest.TestResult()
    suite.run(result)
    return result


class Cases:
    class InATransaction(LockTestMixin, TestCase):
        of_class: ClassVar[Lock]

        @classmethod
        def setUpTestData(cls) -> None:
            cls.of_class = lock("class")
            cls.of_class.acquire()

        def test_1_locks_of_the_class_stay_and_a_lock_is_left(self) -> None:
            assert not lock("class").acquire(blocking=False)
            lock("left").acquire()

        def test_2_it_is_free_for_the_next(self) -> None:
            with lock("left", blocking=False):
                pass
            assert not lock("class").acquire(blocking=False)

        def test_3_a_release_waits_for_a_transaction_of_the_test(self) -> None:
            with transaction.atomic():
                with lock("a"):
                    pass
                assert locks["default"].holder("a")
            assert locks["default"].holder("a") is None
            with lock("a"):
                pass
            assert locks["default"].holder("a") is None

        @override_settings(LOCKS={"default": {"TIMEOUT": 7}})
        def test_4_changed_settings(self) -> None:
            assert locks["default"].timeout == 7
            assert isinstance(locks["default"], LocMemLockBackend)

        async def test_5_asynchronously(self) -> None:
            async with lock("a"):
                pass

    class Lenient(LockTestMixin, SimpleTestCase):
        fail_on_held_locks = False

        def test_1_a_lock_may_be_left(self) -> None:
            lock("left").acquire()

        def test_2_but_does_not_stay(self) -> None:
            with lock("left", blocking=False):
                pass


def test_a_transaction_of_a_test_case_holds_no_lock_back(db: Any) -> None:
    result = outcome(Cases.InATransaction)
    ((case, told),) = result.failures
    name = "test_1_locks_of_the_class_stay_and_a_lock_is_left"
    assert case.id().endswith(name)
    line = getattr(case, name).__code__.co_firstlineno + 2
    assert f"'left' (LOCKS['default']), acquired at tests/testing/test_cases.py:{line}, for" in told
    assert (result.testsRun, result.errors) == (5, [])


def test_locks_may_be_left_where_the_class_says_so() -> None:
    assert outcome(Cases.Lenient).wasSuccessful()


# The pages about tests, with the tests that they show.


def test_the_report_is_that_of_the_guide() -> None:
    (shown,) = [block.text for block in blocks(GUIDE) if block.language == "text"]
    with LockSpace(), lock("report"), pytest.raises(AssertionError) as caught:
        assert_no_locks_held()
    differs = re.compile(r"\d[\d.:]*|at \S+")
    assert differs.sub("0", str(caught.value)) == differs.sub("0", shown.strip())


def test_the_closest_marker_of_a_test_counts() -> None:
    locks_of = pytest.mark.locks
    marks = [locks_of(space="memory").mark, locks_of(space="settings", fail_on_held=True).mark]
    node = SimpleNamespace(iter_markers=lambda name: marks)
    assert plugin._marked(node) == ("memory", True)


def test_the_options_are_those_of_the_plugin() -> None:
    rows = table(DOCS / "reference/testing.md", "pytest")
    source = Path(plugin.__file__).read_text()
    assert [row[0] for row in rows] == re.findall(r'addini\(\s*"(\w+)"', source)
    assert [row[1] for row in rows] == re.findall(r'addoption\(\s*"([\w-]+)"', source)
    assert all(space in rows[0][3] for space in plugin.SPACES)
