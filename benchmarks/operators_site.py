"""The site whose list of held locks is measured: what its server calls, and its addresses."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from django.contrib import admin  # noqa: E402 - once the apps are there
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from django_redis_lock.admin.snapshots import snapshots  # noqa: E402


def forget(request: HttpRequest) -> HttpResponse:
    """Let the next view be a first one."""
    snapshots.forget()
    return HttpResponse()


urlpatterns = [path("admin/", admin.site.urls), path("forget/", forget)]
