"""The guards that are compared, by the name in the address of an order."""

from redis.exceptions import LockError as RedisPyLockError

from benchmarks.load.shop.errors import RefusedError
from benchmarks.load.shop.guards.base import NoGuard
from benchmarks.load.shop.guards.counter import Counter
from benchmarks.load.shop.guards.database import AdvisoryLock, ConditionalUpdate, RowLock, Units
from benchmarks.load.shop.guards.locks import (
    Ours,
    OursFenced,
    PythonRedisLock,
    RedisPy,
    RedisPyEager,
)
from django_redis_lock.exceptions import LockNotAcquired

REFUSALS = (RefusedError, LockNotAcquired, RedisPyLockError)

GUARDS: dict[str, NoGuard] = {
    kind.slug: kind()
    for kind in (
        NoGuard,
        ConditionalUpdate,
        RowLock,
        AdvisoryLock,
        Units,
        Counter,
        RedisPy,
        RedisPyEager,
        PythonRedisLock,
        Ours,
        OursFenced,
    )
}
