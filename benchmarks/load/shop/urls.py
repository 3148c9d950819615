"""Addresses of the shop under load."""

from django.urls import path

from benchmarks.load.shop import views

urlpatterns = [
    path("buy/<slug:guard>/<int:product_id>/<slug:payment>/", views.buy),
    path("product/<int:product_id>/", views.show),
]
