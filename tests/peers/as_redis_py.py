"""redis-py's locks and their errors, synchronous and not, are ours once this is imported."""

import inspect
from contextlib import suppress
from functools import partial

import redis.asyncio.lock
import redis.lock
from ours import backend_of
from redis.commands.core import BasicKeyCommands

import django_redis_lock
from django_redis_lock.exceptions import LockError, LockLost


class Lock(django_redis_lock.Lock):
    def __init__(self, client, name, timeout, sleep, thread_local, raise_on_release_error, **ours):
        super().__init__(partial(backend_of, client), name, timeout, **ours)
        self.local = self
        self.suppressed = () if raise_on_release_error else (LockError,)

    @property
    def token(self):
        return self.lease.token.encode() if self.lease else None

    def __exit__(self, *error):
        with suppress(*self.suppressed):
            super().__exit__(*error)


class AsyncLock(Lock):
    acquire, release, extend = Lock.aacquire, Lock.arelease, Lock.aextend
    reacquire, owned, locked = Lock.areacquire, Lock.aowned, Lock.alocked

    async def __aexit__(self, *error):
        with suppress(*self.suppressed):
            await super().__aexit__(*error)


def on_our_key(command):
    """Let a command of a test look at our key, and at the token, the first field of the value."""

    def token(value):
        return value.split()[0] if isinstance(value, bytes | str) else value

    async def later(value):
        return token(await value)

    def call(client, name, *args, **options):
        value = command(client, f"lock:{name}", *args, **options)
        return later(value) if inspect.isawaitable(value) else token(value)

    return call


redis.lock.Lock, redis.asyncio.lock.Lock = Lock, AsyncLock
redis.exceptions.LockError, redis.exceptions.LockNotOwnedError = LockError, LockLost
for each in ("get", "set", "ttl", "pttl", "pexpire"):
    setattr(BasicKeyCommands, each, on_our_key(getattr(BasicKeyCommands, each)))
