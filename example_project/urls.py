"""Addresses of the shop."""

from django.contrib import admin
from django.urls import include, path

from django_redis_lock.contrib.prometheus.views import metrics

urlpatterns = [
    path("admin/", admin.site.urls),
    path("metrics", metrics),
    path("", include("example_project.shop.urls")),
]
