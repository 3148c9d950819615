"""Commands that hold a lock, in this process: ``locks run``, and a project's own."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redis_lock import lock, locks
from django_redis_lock.management import BUSY, LOST, UNAVAILABLE, LockedCommand, end, signals_to
from example_project.embedded import EmbeddedServer


class Quick(LockedCommand):
    lock_name = "quick"
    does: Any = staticmethod(lambda handle: None)

    def handle(self, **options: Any) -> None:
        self.does(self.lock)


def test_a_command_may_wait() -> None:
    with lock("quick", timeout=60), pytest.raises(CommandError) as told:
        call_command(Quick())
    assert told.value.returncode == BUSY

    class Patient(Quick):
        lock_wait = 0.05

    with lock("quick", timeout=60), pytest.raises(CommandError) as told:
        call_command(Patient())
    assert told.value.returncode == BUSY
    call_command(Patient())
    Patient.lock_wait = None
    with lock("quick"), pytest.raises(CommandError, match="already holds lock 'quick', so") as told:
        call_command(Patient())
    assert told.value.returncode == BUSY


def test_a_command_whose_lock_was_lost_tells() -> None:
    class Broken(Quick):
        @staticmethod
        def does(handle: Any) -> None:
            locks["default"].force_release(handle.name, token_id=handle.token_id, by="a test")

    with pytest.raises(CommandError, match="Lost lock 'quick' while this command ran") as told:
        call_command(Broken())
    assert told.value.returncode == LOST


def test_a_command_without_a_server(own_server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    with redis.Redis.from_url(own_server.url()) as client:
        client.replicaof("127.0.0.1", 1)
    why = r"refused: You can't write against a read only replica\. "
    for reason in (why, "is not available: .*"):
        remedy = "To find the cause, run: manage.py locks doctor --using default$"
        what = rf"^Could not run this command: LOCKS\['default'\] {reason}"
        with pytest.raises(CommandError, match=what + remedy) as told:
            call_command(Quick())
        assert told.value.returncode == UNAVAILABLE
        own_server.kill()


def test_a_command_with_a_wrong_name() -> None:
    class Nameless(Quick):
        lock_name = ""

    with pytest.raises(TypeError, match=r"test_locked.*Nameless must set lock_name\."):
        call_command(Nameless())

    class Unknown(Quick):
        lock_name = "import:{shop}"

    with pytest.raises(CommandError, match="contains a field that isn't an option: 'shop'"):
        call_command(Unknown())
    Unknown.lock_name = "import:%s"
    with pytest.raises(ValueError, match="lock_name='import:%s' has '%s', which is not replaced"):
        call_command(Unknown())


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As with ``nohup``: the command goes on."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with signals_to(end, ["SIGUSR1"]):
        handler = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert handler is signal.SIG_IGN
