"""Addresses of the shop's own pages."""

from django.urls import path

from example_project.shop import sale_page, views

app_name = "shop"
urlpatterns = [
    path("", views.front_page, name="front_page"),
    path("buy/<int:product_id>/", views.buy, name="buy"),
    path("sale/<int:product_id>/", sale_page.sale, name="sale"),
    path("sale/<int:product_id>/news/", sale_page.news, name="news"),
    path("sale/<int:product_id>/state/", sale_page.state, name="state"),
    path("sale/<int:product_id>/rush/", sale_page.start_rush, name="start_rush"),
]
