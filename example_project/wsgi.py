"""The shop for a web server such as gunicorn."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# No web server stands in front of the example, so it serves the admin's style sheets itself.
application = StaticFilesHandler(get_wsgi_application())
