"""The shop's database as the load run sees it: over its own connection, without Django."""

import sqlite3
from pathlib import Path
from typing import Any, Self

OWN = "load-run"
"""The name of the run's own connection, which is not counted."""


class Shelf:
    """Adds products and counts orders."""

    def __init__(self, connection: Any, mark: str) -> None:
        self._connection = connection
        self._mark = mark  # the placeholder for a parameter in SQL

    @classmethod
    def on_postgresql(cls, url: str) -> Self:
        import psycopg

        return cls(psycopg.connect(url, autocommit=True, application_name=OWN), "%s")

    @classmethod
    def in_sqlite(cls, path: Path) -> Self:
        return cls(sqlite3.connect(path, timeout=30, isolation_level=None), "?")

    def close(self) -> None:
        self._connection.close()

    def put(self, products: int, stock: int, *, in_rows: bool = False) -> list[int]:
        """Add `products` products with this stock, as a number or as rows; return their ids."""
        sql = "INSERT INTO shop_product (stock, fence) VALUES (?, 0) RETURNING id"
        added = [self._ask(sql, 0 if in_rows else stock)[0][0] for _ in range(products)]
        if in_rows:
            # Every sale begins with a small table and the statistics that autovacuum would gather.
            self._connection.execute("TRUNCATE shop_unit")
            for product in added:
                self._connection.execute(
                    "INSERT INTO shop_unit (product_id, sold) "
                    "SELECT %s, false FROM generate_series(1, %s)",
                    (product, stock),
                )
            self._connection.execute("ANALYZE shop_unit")
        return added

    def orders(self, products: list[int]) -> int:
        sql = "SELECT count(*) FROM shop_order WHERE product_id = ? AND NOT void"
        return self._sum(sql, products)

    def left(self, products: list[int]) -> int:
        """Return how many units are unsold, by number and by row."""
        sql = (
            "SELECT stock + (SELECT count(*) FROM shop_unit WHERE NOT sold "
            "AND product_id = shop_product.id) FROM shop_product WHERE id = ?"
        )
        return self._sum(sql, products)

    def connections(self) -> int:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND application_name <> ?"
        )
        return int(self._ask(sql, OWN)[0][0])

    def _sum(self, sql: str, products: list[int]) -> int:
        return sum(int(self._ask(sql, product)[0][0]) for product in products)

    def _ask(self, sql: str, parameter: Any) -> list[Any]:
        cursor = self._connection.execute(sql.replace("?", self._mark), (parameter,))
        found: list[Any] = cursor.fetchall()
        return found
