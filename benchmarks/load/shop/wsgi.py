"""The shop under load as gunicorn serves it."""

import os

from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.load.shop.settings"

application = get_wsgi_application()
