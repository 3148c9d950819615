"""What is sold, and to whom."""

from django.db import models

from django_redis_lock.fencing import Fenced


class Product(Fenced):
    """Something to sell, as long as there is stock."""

    stock = models.IntegerField()

    def __str__(self) -> str:
        return f"product {self.pk}"


class Order(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    buyer = models.CharField(max_length=100)

    def __str__(self) -> str:
        return f"product {self.product_id} for {self.buyer}"
