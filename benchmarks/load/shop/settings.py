"""Settings of the shop under load, from what its stage has put into the environment."""

import json
import os

STAGE = json.loads(os.environ["LOAD_STAGE"])
"""The entry of DATABASES, the URL of the Redis server, and where the files of a probe are."""

SECRET_KEY = "for the load runs only, which stay on 127.0.0.1"  # noqa: S105 - it signs nothing
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["django_redis_lock", "benchmarks.load.shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "benchmarks.load.shop.urls"
DATABASES = {"default": STAGE["database"]}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True


def _redis(database: int) -> dict[str, object]:
    """Return an entry of CACHES whose pool has as many connections as the stage allows."""
    pool = "redis.BlockingConnectionPool" if STAGE["redis_pool"] else "redis.ConnectionPool"
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"{STAGE['redis']}/{database}",
        "OPTIONS": {
            "CONNECTION_POOL_CLASS": pool,
            "CONNECTION_POOL_KWARGS": {
                # redis-py's own limits are 100 connections and 5 s, too little for 1,000 threads
                # with a connection each, and for a BLPOP that lasts as long as a lease.
                "max_connections": STAGE["redis_pool"] or 4096,
                "socket_timeout": 90,
            },
        },
    }


CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "locks": _redis(1),
    "peers": _redis(2),
}
LOCKS = {
    "default": {
        "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
        "LOCATION": "locks",
    }
}
PAYMENT_SECONDS = 0.005
