"""How much is measured, in the long form and in the quick one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.load.shop.names import POSTGRESQL, SQLITE

OURS, FENCED = "ours", "ours-fenced"
REDIS_PY, EAGER, PYTHON_REDIS_LOCK = "redis-py", "redis-py-eager", "python-redis-lock"
NONE, ROW, UPDATE = "none", "row", "update"
ADVISORY, UNITS, COUNTER = "advisory", "units", "counter"

TITLES = {
    NONE: "no guard",
    UPDATE: "conditional `F()` update",
    UNITS: "rows of units, `SKIP LOCKED`",
    COUNTER: "counter in Redis, settled",
    ROW: "`select_for_update`",
    ADVISORY: "advisory lock",
    REDIS_PY: "redis-py `Lock`",
    EAGER: "redis-py `Lock`, sleep=0.01",
    PYTHON_REDIS_LOCK: "python-redis-lock",
    OURS: "django-redis-lock",
    FENCED: "django-redis-lock, fenced",
}
"""The guards of the shop in the order of the tables."""

ON = {
    POSTGRESQL: tuple(TITLES),
    # SQLite has no row locks, and no advisory locks.
    SQLITE: tuple(slug for slug in TITLES if slug not in {ROW, UNITS, ADVISORY, EAGER}),
}
"""The guards by database."""

LEAD = 0.5
"""Seconds at the start of a sale that are not timed."""
START = 6.0
"""About how many seconds the servers take to start and stop."""
AROUND = 1.3
"""About how many seconds a sale takes besides: stock, and the buyers who wait at its end."""


@dataclass(frozen=True)
class Cell:
    """A load: buyers on some products, and how long the payment takes."""

    slug: str
    title: str
    products: int
    buyers: int
    payment: str = "none"


ONE = Cell("one", "One hot product, 100 buyers", 1, 100)
HUNDRED = Cell("hundred", "100 hot products, 100 buyers", 100, 100)
FEW = Cell("few", "One hot product, 20 buyers", 1, 20)
PAYING = Cell("paying", "One hot product, 100 buyers, a payment of 5 ms", 1, 100, "slow")
RUSH = "rush"
"""Stands for the rush where a load is named."""
CELLS = {cell.slug: cell for cell in (ONE, HUNDRED, FEW, PAYING)}
MOST_BUYERS = max(cell.buyers for cell in CELLS.values())


@dataclass(frozen=True)
class Sale:
    """A cell as it is measured on one database."""

    seconds: float
    """How many seconds are timed."""
    guards: tuple[str, ...] = ()
    """The guards, if not all."""


@dataclass(frozen=True)
class Plan:
    rounds: int
    sales: dict[str, dict[str, Sale]]
    """By database and load."""
    waiting: dict[int, tuple[str, ...]]
    """Guards by the number of buyers who wait, on PostgreSQL."""
    bystanders: tuple[str, ...]
    """The guards with which the page of another product is measured."""
    looking: float = 1.5
    """How many seconds of that are timed."""
    left_out: tuple[str, ...] = ()
    """Guards that are not measured."""
    processes: int = 3
    lookers: int = 5
    redis_pool: int = 8
    database_pool: int = 10

    def guards(self, database: str) -> list[str]:
        return [slug for slug in ON[database] if slug not in self.left_out]

    def cells(self, database: str) -> dict[str, list[str]]:
        """Return the guards of each load, the rush among them."""
        guards = self.guards(database)
        sales = self.sales[database].items()
        return {**{cell: list(sale.guards or guards) for cell, sale in sales}, RUSH: guards}

    def parts(self) -> Iterator[tuple[str, float, str, tuple[Any, ...]]]:
        """Yield each part: title, about how many seconds it takes, method, arguments."""
        for database in self.sales:
            seconds = START + self.rounds * self._round(database)
            yield f"{database}: sales and rushes", seconds, "sell", (database,)
        if self.waiting:
            each = [
                START + 5 + buyers / 200 for buyers, slugs in self.waiting.items() for _ in slugs
            ]
            # redis-py's buyers poll so often that some are refused, after 60 s
            refused = 60.0 * (REDIS_PY in self.waiting.get(1000, ()))
            yield "buyers who wait", self.rounds * (sum(each) + refused), "wait", ()
        if self.bystanders:
            each = len(self.bystanders) * (LEAD + self.looking + AROUND)
            yield "bystanders", START + self.rounds * each, "look_on", ()

    def _round(self, database: str) -> float:
        cells, sales = self.cells(database), self.sales[database]
        return len(cells[RUSH]) + sum(
            len(cells[cell]) * (LEAD + sale.seconds + AROUND) for cell, sale in sales.items()
        )


LONG = Plan(
    rounds=3,
    sales={
        POSTGRESQL: {
            # The longest waits behind an unfair lock take a longer sale to show.
            ONE.slug: Sale(5),
            HUNDRED.slug: Sale(2, tuple(slug for slug in TITLES if slug not in {EAGER, FENCED})),
            FEW.slug: Sale(3, (UPDATE, ROW, REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
            PAYING.slug: Sale(2),
        },
        SQLITE: {ONE.slug: Sale(1.5), HUNDRED.slug: Sale(1)},
    },
    waiting={
        100: (UPDATE, UNITS, COUNTER, ROW, ADVISORY, REDIS_PY, PYTHON_REDIS_LOCK, OURS),
        1000: (REDIS_PY, PYTHON_REDIS_LOCK, OURS),
    },
    bystanders=tuple(slug for slug in TITLES if slug not in {EAGER, FENCED}),
)
QUICK = Plan(
    rounds=1,
    sales={POSTGRESQL: {ONE.slug: Sale(0.5)}, SQLITE: {ONE.slug: Sale(0.5)}},
    waiting={200: (OURS,)},
    bystanders=(),
    left_out=(EAGER,),
)
