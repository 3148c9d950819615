"""How much is measured, in the long form and in the quick one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.load.shop.names import POSTGRESQL, SQLITE

OURS, FENCED = "ours", "ours-fenced"
REDIS_PY, EAGER, PYTHON_REDIS_LOCK = "redis-py", "redis-py-eager", "python-redis-lock"
NONE, ROW, UPDATE = "none", "row", "update"

TITLES = {
    NONE: "no guard",
    UPDATE: "conditional `F()` update",
    ROW: "`select_for_update`",
    REDIS_PY: "redis-py `Lock`",
    EAGER: "redis-py `Lock`, sleep=0.01",
    PYTHON_REDIS_LOCK: "python-redis-lock",
    OURS: "django-redis-lock",
    FENCED: "django-redis-lock, fenced",
}
"""The guards of the shop in the order of the tables."""

ON = {
    POSTGRESQL: tuple(TITLES),
    # SQLite has no row locks: Django ignores ``select_for_update`` there.
    SQLITE: tuple(slug for slug in TITLES if slug not in (ROW, EAGER)),
}
"""The guards by database."""

LEAD = 0.5
"""Seconds at the start of a sale that are not timed."""
START = 6.0
"""About how many seconds the servers take to start and stop."""
DRAIN = 0.7
"""About how many seconds the buyers who still wait at the end of a sale are waited for."""


@dataclass(frozen=True)
class Cell:
    """A load: buyers on some products, and how long the payment takes."""

    slug: str
    title: str
    products: int
    buyers: int
    payment: str = "none"


ONE = Cell("one", "One hot product, 100 buyers", 1, 100)
TEN = Cell("ten", "10 hot products, 100 buyers", 10, 100)
HUNDRED = Cell("hundred", "100 hot products, 100 buyers", 100, 100)
FEW = Cell("few", "One hot product, 20 buyers", 1, 20)
PAYING = Cell("paying", "One hot product, 100 buyers, a payment of 5 ms", 1, 100, "slow")
CELLS = {cell.slug: cell for cell in (ONE, TEN, HUNDRED, FEW, PAYING)}
MOST_BUYERS = max(cell.buyers for cell in CELLS.values())


@dataclass(frozen=True)
class Plan:
    rounds: int
    cells: dict[str, dict[str, float]]
    """How many seconds of a sale are timed, by database and load."""
    limits: dict[str, float]
    """Seconds by database; no round of sales begins that would end later."""
    waiting: tuple[tuple[str, int, tuple[str, ...]], ...]
    """Database, number of waiting buyers, guards."""
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

    def parts(self) -> Iterator[tuple[str, float, str, tuple[Any, ...]]]:
        """Yield each part: title, about how many seconds it takes at most, method, arguments."""
        for database, cells in self.cells.items():
            guards = len(self.guards(database))
            sales = self.rounds * guards * sum(LEAD + timed + DRAIN for timed in cells.values())
            seconds = START + min(sales, self.limits[database])
            yield f"{database}: sales", seconds, "sell", (database,)
            yield f"{database}: a rush with each guard", START + guards, "rush", (database,)
        for database, buyers, slugs in self.waiting:
            for slug in slugs:
                # redis-py's buyers poll so often that some are refused, after 60 s
                refused = 60.0 if slug == REDIS_PY and buyers >= 1000 else 0.0
                seconds = START + 5 + buyers / 200 + refused
                title = f"{database}: {buyers} buyers wait, {TITLES[slug]}"
                yield title, seconds, "wait", (database, buyers, slug)
        for slug in self.bystanders:
            seconds = START + LEAD + self.looking + DRAIN
            yield f"bystanders: {TITLES[slug]}", seconds, "look_on", (slug,)


LONG = Plan(
    rounds=3,
    cells={
        # The longest waits behind an unfair lock take a longer sale to show.
        POSTGRESQL: {"one": 6, "ten": 1, "hundred": 1, "few": 3, "paying": 1},
        SQLITE: {"one": 1.5, "ten": 1, "hundred": 1},
    },
    limits={POSTGRESQL: 450, SQLITE: 140},
    waiting=(
        (POSTGRESQL, 100, (ROW, REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
        (SQLITE, 100, (REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
        (POSTGRESQL, 1000, (REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
    ),
    bystanders=(NONE, UPDATE, ROW, REDIS_PY, PYTHON_REDIS_LOCK, OURS),
)
QUICK = Plan(
    rounds=1,
    cells={POSTGRESQL: {"one": 1}, SQLITE: {"one": 1}},
    limits={POSTGRESQL: 60, SQLITE: 60},
    waiting=((POSTGRESQL, 200, (OURS,)),),
    bystanders=(),
    left_out=(EAGER,),
)
