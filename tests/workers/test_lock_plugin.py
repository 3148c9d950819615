"""The pytest plugin, in the tests of a small project that run in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.project import PLUGIN, Project

TESTS = """
    @pytest.fixture(scope="session", autouse=True)
    def held_by_the_session():
        with lock("session"):
            yield

    at_import = lock("module")
    at_import.acquire()

    def test_locks_of_wider_scopes_stay():
        assert not lock("session").acquire(blocking=False)
        assert not lock("module").acquire(blocking=False)

    @pytest.mark.locks(fail_on_held=False)
    @pytest.mark.parametrize("number", range(3))
    def test_each_test_begins_without_the_locks_of_others(number):
        assert list(locks["second"].holders()) == []
        assert locks["second"].history() == []
        lock("lost", using="second").acquire()
        lose("lost", using="second")
        lock("same", using="second").acquire()

    def test_one_that_leaves_a_lock_fails():
        lock("forgotten").acquire()

    @override_settings(LOCKS={"default": {"TIMEOUT": 7, "LOCATION": "redis://127.0.0.1:1"}})
    def test_changed_settings_apply_in_the_space():
        assert locks["default"].timeout == 7
        with lock("left"):
            pass

    def test_what_happens_is_recorded(recorded_locks):
        with lock("a"):
            pass
        assert recorded_locks.events == [("acquired", "a"), ("released", "a")]

    class InATestCase(TestCase):
        def test_locks_are_kept_in_the_space(self):
            assert not lock("session").acquire(blocking=False)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_each_test_has_locks_of_its_own(project: Project) -> None:
    project.configure("lock_space = memory", "fail_on_held_locks = true")
    project.tests(TESTS)
    assert project.run() == {"passed": 8, "error": 1}, project.output
    told = "'forgotten' (LOCKS['default']), acquired at test_small.py:"
    assert told in project.output


def test_without_options_nothing_changes(project: Project) -> None:
    """But for a test whose marker says so; and a mistake in a marker is told."""
    project.configure()
    project.tests("""
        def test_locks_are_where_the_settings_say():
            with pytest.raises(LockUnavailable):
                lock("a").acquire()

        @pytest.mark.locks(space="memory")
        def test_a_marker_is_enough():
            lock("a").acquire()

        @pytest.mark.locks(space="redis")
        def test_unknown_space(): pass

        @pytest.mark.locks(hold=True)
        def test_unknown_argument(): pass

        @pytest.mark.locks("memory")
        def test_without_its_name(): pass
    """)
    assert project.run() == {"passed": 2, "errors": 3}, project.output
    told = "is invalid. Use space='memory' or 'settings', and fail_on_held="
    assert project.output.count(told) == 3, project.output


def test_a_mistake_in_the_configuration_is_told(project: Project) -> None:
    project.configure("lock_space = redis")
    project.program("-m", "pytest", "-p", PLUGIN)
    assert "lock_space = redis is unknown: use one of memory, settings" in project.output


def test_it_runs_without_pytest_django(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nlock_space = memory\nfail_on_held_locks = true")
    project.write("conftest.py", "import django; django.setup()")
    project.tests("""
        def test_a_lock():
            lock("a").acquire()

        @pytest.mark.locks(space="settings")
        def test_a_server():
            with pytest.raises(LockUnavailable):
                lock("a").acquire()
    """)
    found = project.run("-p", "no:django", DJANGO_SETTINGS_MODULE="small_settings")
    assert found == {"passed": 2, "error": 1}, project.output


def test_it_costs_nothing_where_there_is_no_django(project: Project) -> None:
    project.write(
        "test_plain.py",
        """
        import sys

        def test_what_is_imported():
            ours = {name for name in sys.modules if name.startswith("django_redis_lock")}
            assert ours == {
                "django_redis_lock",
                "django_redis_lock.support",
                "django_redis_lock.testing",
                "django_redis_lock.testing.plugin",
            }
            assert not {"django", "redis", "celery"} & set(sys.modules)
        """,
    )
    assert project.run("-p", "no:django", "-p", "no:randomly") == {"passed": 1}, project.output


def test_the_tools_need_no_pytest(project: Project) -> None:
    project.write(
        "tests.py",
        """
        import sys
        sys.modules["pytest"] = None
        from django.test import TestCase
        from django_redis_lock import lock
        from django_redis_lock.testing import LockTestMixin, held_by_another

        class Tests(LockTestMixin, TestCase):
            def test_a_lock(self):
                with held_by_another("a"):
                    assert not lock("a").acquire(blocking=False)
        """,
    )
    args = ("-m", "django", "test", "--settings=small_settings")
    assert project.program(*args) == 0, project.output
    assert "Ran 1 test" in project.output
