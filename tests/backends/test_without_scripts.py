"""A server without Lua scripts: the error says what to do and shows no secrets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock, lock_many, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.support.arguments import WAITING_SCHEMES
from example_project.embedded import EmbeddedServer
from tests.settings import REDIS

BACKENDS = "django_redis_lock.backends"
TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def known_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: bytes.fromhex(TOKEN)[:size])


@pytest.fixture(scope="module", params=["EVALSHA EVAL SCRIPT", "EVAL", "acl"])
def urls(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Three servers whose user can run no script, each for another reason."""
    renamed = [] if request.param == "acl" else request.param.split()
    config = [part for command in renamed for part in ("--rename-command", command, "")]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer(*config)) for _ in range(3)]
        rule = ("on", ">secret", "~*", "&*", "+@all", *(() if renamed else ("-@scripting",)))
        for server in servers:
            with redis.Redis.from_url(server.url()) as client:
                client.execute_command("ACL", "SETUSER", "app", *rule)
        yield [server.url().replace("//", "//app:secret@") for server in servers]
        locks.reset()


@pytest.fixture
def aliases(urls: list[str]) -> Iterator[None]:
    """An entry of LOCKS for each waiting scheme, and for the other backends."""
    entries: dict[str, Any] = {
        wait: {"BACKEND": REDIS, "LOCATION": urls[0], "OPTIONS": {"WAIT": wait}}
        for wait in WAITING_SCHEMES
    }
    entries["redlock"] = {"BACKEND": f"{BACKENDS}.redlock.RedlockLockBackend", "LOCATION": urls}
    entries["getset"] = {"BACKEND": f"{BACKENDS}.getset.GetSetLockBackend", "LOCATION": urls[0]}
    with override_settings(LOCKS=entries):
        yield


async def enter(name: str, using: str) -> None:
    async with lock(name, timeout=20, using=using):
        pass


CALLS = {
    "acquire": lambda name, using: lock(name, timeout=20, using=using).acquire(),
    "aacquire": lambda name, using: asyncio.run(enter(name, using)),
    "take_over": lambda name, using: lock(name, timeout=20, using=using).take_over("0" * 16),
    "lock_many": lambda name, using: lock_many([name, "b"], timeout=20, using=using).acquire(),
    "holders": lambda name, using: list(locks[using].holders()),
}


@pytest.mark.usefixtures("aliases", "known_token")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("using", [*WAITING_SCHEMES, "redlock"])
def test_a_server_without_scripts_is_named_for_it(name: str, using: str, call: str) -> None:
    """The error names the alias and a backend that works, at once, and repeats no argument."""
    with pytest.raises(LockUnavailable) as caught:
        CALLS[call](name, using)
    message = str(caught.value)
    assert message.startswith(f"LOCKS[{using!r}] ")
    told = message.replace("`", "'")  # as Redis 6.2 quotes
    assert "the server has no Lua scripts (unknown command 'EVAL" in told or (
        "no permissions to run the 'eval" in message
    )
    assert f"'{BACKENDS}.getset.GetSetLockBackend'" in message
    assert caught.value.refused
    for secret in (TOKEN[:16], f"lock:{name}", "KEYS[1]", "'secret'"):
        assert secret not in message


@pytest.mark.usefixtures("aliases")
def test_the_backend_that_is_named_works_there(name: str) -> None:
    with lock(name, timeout=20, using="getset") as held:
        held.ensure_held()
        assert not lock(name, using="getset").acquire(blocking=False)
