"""The shop's background work."""

import time
from decimal import Decimal
from typing import Any

from django.conf import settings

from django_redis_lock.celery import single_instance_task
from example_project.celery import app
from example_project.shop.models import Product

CATALOGUE_ROWS = 8


@app.task
@single_instance_task(key="import:{shop_id}")
def import_products(shop_id: int) -> dict[str, int]:
    """Fetch a supplier's catalogue row by row, which is slow, and update our products.

    Two at once would fetch everything twice and overwrite each other's rows.
    """
    added = 0
    for row in range(1, CATALOGUE_ROWS + 1):
        time.sleep(settings.SHOP_IMPORT_ROW_SECONDS)  # the supplier's answer
        _, new = Product.objects.update_or_create(
            slug=f"shop-{shop_id}-item-{row}",
            defaults={"name": f"Item {row} of shop {shop_id}", "price": Decimal(row)},
        )
        added += new
    return {"shop": shop_id, "rows": CATALOGUE_ROWS, "added": added}


@app.task
@single_instance_task(key="supplier", concurrency=3, on_conflict="park", turns="{tenant}")
def ask_supplier(tenant: str) -> tuple[float, float, str]:
    """Ask a supplier who allows three calls at once; return when that began and ended.

    Further calls are parked, in a backlog for each tenant, and occupy no worker process.
    """
    began = time.monotonic()
    time.sleep(settings.SHOP_SUPPLIER_SECONDS)
    return began, time.monotonic(), tenant


@app.task
def add_up(results: list[dict[str, Any]]) -> dict[str, int]:
    """Sum up several imports, including those that were skipped."""
    return {
        "imports": len(results),
        "skipped": sum(bool(result.get("skipped")) for result in results),
        "rows": sum(result.get("rows", 0) for result in results),
    }
