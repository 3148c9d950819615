"""The settings of a site with nothing but the admin, whose list of held locks is measured."""

import os
from pathlib import Path

STORE = Path(os.environ.get("OPERATORS_STORE", "."))

ALLOWED_HOSTS = ["*"]
SECRET_KEY = "not a secret of anybody"  # noqa: S105 - a site on this machine, for some minutes
ROOT_URLCONF = "benchmarks.operators_site"
STATIC_URL = "static/"
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": STORE / "site.sqlite3"},
}
SESSION_ENGINE = "django.contrib.sessions.backends.file"
SESSION_FILE_PATH = str(STORE)
LOCKS = {
    "default": {
        "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
        "LOCATION": os.environ.get("OPERATORS_URL", "redis://127.0.0.1:6379/0"),
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_redis_lock",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
