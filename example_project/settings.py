"""Settings of the shop: SQLite, and a Redis or Valkey server with a database for the locks."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent
REDIS_URL = os.environ.get("SHOP_REDIS_URL", "redis://127.0.0.1:6379").rstrip("/")

SECRET_KEY = "for this example only, which listens on 127.0.0.1"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_lock",
    "django_redis_lock.contrib.prometheus",
    "example_project.shop",
]
MIDDLEWARE = [
    "example_project.shop.csp.strict_csp",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
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

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", BASE_DIR / "shop.sqlite3"),
        # Each thread keeps its connection: when the last one closes, SQLite checkpoints its log.
        "CONN_MAX_AGE": 60,
        "OPTIONS": {
            # Readers do not block the writer, and writers wait for each other. IMMEDIATE takes the
            # write lock at the start: a transaction that reads first could not wait for it later.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"{REDIS_URL}/0",
    },
    # Their own database: cache.clear() on the other one does not delete the locks.
    "locks": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"{REDIS_URL}/1",
    },
}
LOCKS = {
    "default": {
        "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
        "LOCATION": "locks",
        "TIMEOUT": 10,
        # Metrics tell products from imports, not one product from another.
        "OPERATORS": {
            "GROUPS": {"product:*": "product", "import:*": "import"},
        },
    },
}

CELERY_BROKER_URL = f"{REDIS_URL}/2"
CELERY_RESULT_BACKEND = f"{REDIS_URL}/3"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A prefetched message would wait behind a slow task while another process is idle.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"

# How long a payment, one row of the supplier's catalogue and a call to him take, in seconds.
SHOP_PAYMENT_SECONDS = 0.02
SHOP_IMPORT_ROW_SECONDS = 0.25
SHOP_SUPPLIER_SECONDS = float(os.environ.get("SHOP_SUPPLIER_SECONDS", "0.4"))
