"""Models whose rows are fenced; the tests make their tables themselves."""

from __future__ import annotations

from typing import Any

from django.db import models

from django_redis_lock.fencing import Fenced, FencedManager


class Branch(models.Model):
    name = models.CharField(max_length=50)

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.name


class Product(Fenced):
    shop = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="products")
    stock = models.IntegerField()
    label = models.CharField(max_length=50, default="")

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return f"{self.pk}: {self.stock}"


class Offer(Product):
    discount = models.IntegerField()

    class Meta:
        app_label = "tests"


class ShownNotes(FencedManager["Note"]):
    """The rows that are not marked as deleted."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(deleted=False)


class Note(Fenced):
    text = models.CharField(max_length=50)
    deleted = models.BooleanField(default=False)

    objects = ShownNotes()
    every: Any = FencedManager()

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.text


TABLES = (Branch, Product, Note)
