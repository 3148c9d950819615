"""The addresses of the site with the list of held locks."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redis_lock.admin.snapshots import snapshots


def forget(request: HttpRequest) -> HttpResponse:
    """Make the next view a first one."""
    snapshots.forget()
    return HttpResponse()


urlpatterns = [path("admin/", admin.site.urls), path("forget/", forget)]
