"""Django settings of the tests; child processes of a test use them too."""

from __future__ import annotations

import os
from pathlib import Path

from example_project import embedded

if _PROGRAM := os.environ.get("LOCKS_TEST_SERVER"):  # all servers of the tests are this program
    embedded.server_binary = lambda: Path(_PROGRAM)
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER:  # such as "gw0"; none takes a port that another one has chosen and not bound yet
    _WORKERS = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    embedded.PORTS = embedded.PORTS[int(_WORKER.removeprefix("gw")) % _WORKERS :: _WORKERS]
_PORT = f"LOCK_TEST_PORT{_WORKER}"
PORT = int(os.environ.setdefault(_PORT, str(embedded.free_port())))
"""Where the session's server listens; chosen here, so that child processes agree on it."""


def server_url(db: int = 0) -> str:
    """Return the URL of a database of the session's server."""
    return f"redis://127.0.0.1:{PORT}/{db}"


SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_lock",
]
MIDDLEWARE = [
    "tests.apps.csp.strict_csp",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "locks": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server_url()},
}
REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
LOCKS = {
    "default": {"BACKEND": REDIS, "LOCATION": "locks"},
    "url": {"BACKEND": REDIS, "LOCATION": server_url(1), "TIMEOUT": 5, "KEY_PREFIX": "by-url"},
    "locmem": {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"},
    "dummy": {"BACKEND": "django_redis_lock.backends.dummy.DummyLockBackend"},
}
