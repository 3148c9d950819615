"""What is sold, and to whom."""

from django.db import models

from django_redis_lock.fencing import Fenced


class Product(Fenced):
    """Something to sell, as long as there is stock."""

    stock = models.IntegerField()

    def __str__(self) -> str:
        return f"product {self.pk}"


class Unit(models.Model):
    """One unit of a product whose stock is not a number, but rows."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, db_index=False)
    sold = models.BooleanField(default=False)

    class Meta:
        indexes = (
            # Sold units are not in it, so finding a free one takes as long at the end of a sale.
            models.Index(fields=["product", "id"], condition=models.Q(sold=False), name="free"),
        )

    def __str__(self) -> str:
        return f"unit {self.pk} of product {self.product_id}"


class Order(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    buyer = models.CharField(max_length=100)
    reservation = models.CharField(max_length=32, null=True, unique=True)  # noqa: DJ001 - NULL is not unique
    """Which reservation of a counter became this order. A reservation has one order at most."""
    void = models.BooleanField(default=False)
    """Not an order: it records that the reservation ran out, so that it can't become one."""

    def __str__(self) -> str:
        return f"product {self.product_id} for {self.buyer}"
