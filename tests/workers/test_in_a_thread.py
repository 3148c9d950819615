"""Celery's own worker in a thread of the test process, as projects use it in their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_project.embedded import EmbeddedServer
from tests.testing.project import Project

TESTS = """
    from celery import chord, shared_task
    from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task

    @shared_task
    @single_instance_task(key="part:{number}")
    def part(number):
        return number

    @shared_task
    def total(numbers):
        return sum(numbers)

    @shared_task(bind=True, max_retries=3)
    @single_instance_task(key="again", scope="queue_and_run")
    def again(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return locks["default"].holder("again").task_id

    @shared_task
    @single_instance_task(key="alone", on_conflict="raise")
    def alone():
        return "done"

    @shared_task
    @single_instance_task(key="later", on_conflict="retry", countdown=0.1)
    def later():
        return "done"

    @shared_task
    @single_instance_task(key="rare", at_least_for=60)
    def rare():
        return "done"

    @shared_task
    @single_instance_task(key="losing")
    def losing():
        expire_now("losing")
        return "done"

    @shared_task
    @single_instance_task(key="parking", on_conflict="park")
    def parking():
        return "done"

    @pytest.fixture(autouse=True)
    def worker(celery_session_app, celery_session_worker):
        yield

    def test_a_chord(recorded_locks):
        assert chord([part.s(1), part.s(2)])(total.s()).get(timeout=20) == 3
        assert sorted(recorded_locks.released) == ["part:1", "part:2"]

    def test_a_retry_keeps_the_lock():
        result = again.delay()
        assert result.get(timeout=20) == result.id

    def test_conflicts():
        with held_by_another("alone"), pytest.raises(TaskAlreadyRunning):
            alone.delay().get(timeout=20)
        with held_by_another("later"):
            result = later.delay()
            assert part.delay(3).get(timeout=20) == 3
        assert result.get(timeout=20) == "done"

    def test_a_task_that_parks_needs_a_server():
        with held_by_another("parking"), pytest.raises(InvalidLockBackend, match="settings"):
            parking.delay().get(timeout=20)
        assert parking.delay().get(timeout=20) == "done"

    def test_a_task_that_rests_left_no_lock(recorded_locks):
        assert rare.delay().get(timeout=20) == "done"
        assert rare.delay().get(timeout=20)["skipped"]
        expire_now("rare")
        assert rare.delay().get(timeout=20) == "done"

    def test_a_task_that_loses_its_lock(recorded_locks):
        assert losing.delay().get(timeout=20) == "done"
        assert recorded_locks.lost == ["losing"]

    def test_an_outage():
        with unavailable():
            result = part.delay(5)
            with pytest.raises(LockUnavailable):
                result.get(timeout=20)

    def test_eager_tasks(celery_session_app, monkeypatch):
        monkeypatch.setitem(celery_session_app.conf, "task_always_eager", True)
        assert part.delay(1).get() == 1
        with held_by_another("part:1"):
            assert part.delay(1).get()["skipped"]
        for task, key in ((later, "later"), (parking, "parking")):
            with held_by_another(key), pytest.raises(TaskAlreadyRunning):
                task.delay().get()
        assert chord([part.s(1), part.s(2)])(total.s()).get() == 3
        assert again.delay().get()
"""


def test_a_worker_in_a_thread_guards_as_documented(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.configure("lock_space = memory", "fail_on_held_locks = true")
    project.write("conftest.py", "pytest_plugins = ['celery.contrib.pytest']")
    project.tests(TESTS)
    assert project.run() == {"passed": 8}, project.output


PARKED = """
    from celery.contrib.testing.worker import start_worker

    def looking():
        return any(one.name.startswith("django-redis-lock-parked") for one in threading.enumerate())

    def test_parked(celery_session_app):
        celery_session_app.finalize()  # as start_worker does before it imports the tasks
        from django_redis_lock.celery import single_instance_task

        @celery_session_app.task
        @single_instance_task(key="one", on_conflict="park")
        def parking():
            return "done"

        celery_session_app.task(single_instance_task(using="nope")(looking))
        with start_worker(celery_session_app, pool="POOL", perform_ping_check=False):
            with lock("one"):
                result = parking.delay()
                while not locks["default"].waiting("one"):
                    pass
            assert result.get(timeout=20) == "done"
            assert looking()
        assert not looking()
"""


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_in_a_thread_sends_parked_tasks(
    tmp_path: Path, server: EmbeddedServer, pool: str
) -> None:
    project = Project(tmp_path, server.url())
    project.configure()
    project.write("conftest.py", "pytest_plugins = ['celery.contrib.pytest']")
    project.tests(PARKED.replace("POOL", pool))
    assert project.run() == {"passed": 1}, project.output


def test_the_guide_about_tests_passes_with_a_worker(tmp_path: Path, server: EmbeddedServer) -> None:
    project = Project(tmp_path, server.url())
    number = project.follow_the_guide()
    assert number >= 10
    assert project.run() == {"passed": number}, project.output
