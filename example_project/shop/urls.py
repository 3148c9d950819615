"""Addresses of the shop's own pages."""

from django.urls import path

from example_project.shop import views

app_name = "shop"
urlpatterns = [
    path("", views.front_page, name="front_page"),
    path("buy/<int:product_id>/", views.buy, name="buy"),
]
