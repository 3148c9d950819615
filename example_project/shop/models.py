"""What the shop sells, and to whom."""

from django.core.validators import MinValueValidator
from django.db import models

from django_redis_lock.fencing import Fenced


class Product(Fenced):
    """Something to sell; its row stores the highest fence that has written it."""

    name = models.CharField(max_length=100)
    slug = models.SlugField(unique=True)
    stock = models.IntegerField(default=0)
    price = models.DecimalField(max_digits=8, decimal_places=2, validators=[MinValueValidator(0)])

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="orders")
    buyer = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.product} for {self.buyer}"
