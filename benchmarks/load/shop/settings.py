"""Settings of the shop under load, from what its stage has put into the environment."""

import json
import os

STAGE = json.loads(os.environ["LOAD_STAGE"])
"""The entry of DATABASES, the URL of the Redis server, and where the files of a probe are."""

SECRET_KEY = "for the load runs only, which stay on 127.0.0.1"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["django_redis_lock", "benchmarks.load.shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "benchmarks.load.shop.urls"
DATABASES = {"default": STAGE["database"]}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

LOCKS = {
    "default": {
        "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
        "LOCATION": STAGE["redis"],
    }
}
PAYMENT_SECONDS = 0.005
