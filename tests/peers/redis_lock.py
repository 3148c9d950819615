"""python-redis-lock of our locks, which is found before the real one; ``id`` is the token_id."""

import logging
from contextlib import contextmanager
from functools import partial

from ours import backend_of

import django_redis_lock
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned

InvalidTimeout = ValueError
AlreadyAcquired, NotAcquired, NotExpirable, TimeoutNotUsable, TimeoutTooLarge = (
    type(f"Error{number}", (RuntimeError,), {}) for number in range(5)
)


@contextmanager
def their_errors(otherwise):
    try:
        yield
    except LockError as error:
        lost = isinstance(error, LockLost | LockNotOwned)
        raise (NotAcquired if lost else otherwise)(str(error)) from error


class Lock:
    def __init__(self, client, name, expire=None, id=None, auto_renewal=False, **options):
        options.pop("signal_expire", None)
        self._name, self._given, self._expire = f"lock:{name}", id, expire
        self._backend = partial(backend_of, client)
        self.handle = self._new(expire, name=name, auto_renew=auto_renewal, **options)
        self.locked = self.handle.locked

    def _new(self, expire, **options):
        return django_redis_lock.Lock(self._backend, timeout=expire, **options)

    def _handle_for(self, expire):
        if self.handle.lease is None and self._given:  # the id of another, whose lock it takes over
            self.handle = self._new(expire, name=self.handle.name)
            self.handle.take_over(self._given)
        return self.handle

    @property
    def id(self):
        return self.handle.token_id if self.handle.lease else self._given

    def acquire(self, blocking=True, timeout=0):
        logging.debug("Acquiring Lock(%r) ...", self._name)
        with their_errors(AlreadyAcquired):
            acquired = self.handle.acquire(blocking, int(timeout) or None)
        logging.info("%s Lock(%r).", "Acquired" if acquired else "Failed to acquire", self._name)
        return acquired

    def release(self):
        logging.debug("Releasing Lock(%r).", self._name)
        with their_errors(NotAcquired):
            self._handle_for(self._expire).release()

    def extend(self, expire=None):
        if expire is self._expire is None:
            raise TypeError("neither the lock nor this call says by how much")
        with their_errors(NotExpirable):
            self._handle_for(expire).extend(expire or self._expire, replace_ttl=True)

    def reset(self):
        self._backend().force_release(self.handle.name)

    def get_owner_id(self):
        return self._backend().holder(self.handle.name).token_id

    def __enter__(self):
        if not self.acquire(self.handle.blocking):
            raise NotAcquired
        return self

    def __exit__(self, *error):
        self.release()


def reset_all(client):
    for holder in backend_of(client).holders():
        backend_of(client).force_release(holder.name)
