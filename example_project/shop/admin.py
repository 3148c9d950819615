"""The shop in Django's admin."""

from django.contrib import admin

from example_project.shop.models import Order, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    """Products with their stock."""

    list_display = ("name", "stock", "price")
    prepopulated_fields = {"slug": ("name",)}  # noqa: RUF012 - Django's own way to write it


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders, newest first."""

    list_display = ("product", "buyer", "created_at")
    list_filter = ("product",)
    list_select_related = ("product",)
