"""The site whose list of held locks is measured: what its server calls, and its addresses."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from django.contrib import admin  # noqa: E402 - once the apps are there
from django.urls import path  # noqa: E402

urlpatterns = [path("admin/", admin.site.urls)]
