"""The site for gunicorn, which loads it before it forks its workers."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.apps.traced.settings")

from django.core.wsgi import get_wsgi_application
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.django import DjangoInstrumentor

DjangoInstrumentor().instrument()
CeleryInstrumentor().instrument()
application = get_wsgi_application()
