"""The shop for a web server such as gunicorn."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# There is no web server in front of the example, so it serves static files itself.
application = StaticFilesHandler(get_wsgi_application())
