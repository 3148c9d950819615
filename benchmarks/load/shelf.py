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

    def put(self, products: int, stock: int) -> list[int]:
        """Add `products` products with this stock; return their ids."""
        sql = "INSERT INTO shop_product (stock, fence) VALUES (?, 0) RETURNING id"
        return [self._ask(sql, stock)[0][0] for _ in range(products)]

    def orders(self, products: list[int]) -> int:
        return self._sum("SELECT count(*) FROM shop_order WHERE product_id = ?", products)

    def left(self, products: list[int]) -> int:
        return self._sum("SELECT stock FROM shop_product WHERE id = ?", products)

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
