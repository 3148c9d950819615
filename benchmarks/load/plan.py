"""How much is measured, in the long form and in the quick one."""

from dataclasses import dataclass

from .measure import Cell
from .shop.names import POSTGRESQL, SQLITE

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

ON_POSTGRESQL = tuple(TITLES)
ON_SQLITE = tuple(slug for slug in TITLES if slug not in (ROW, EAGER))
"""SQLite has no locks of rows: Django leaves ``select_for_update`` out there."""

ONE = Cell("one", "One hot product, 100 buyers", 1, 100)
TEN = Cell("ten", "10 hot products, 100 buyers", 10, 100)
HUNDRED = Cell("hundred", "100 hot products, 100 buyers", 100, 100)
FEW = Cell("few", "One hot product, 20 buyers", 1, 20)
PAYING = Cell("paying", "One hot product, 100 buyers, a payment of 5 ms", 1, 100, "slow")
CELLS = {cell.slug: cell for cell in (ONE, TEN, HUNDRED, FEW, PAYING)}


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    rounds: int
    seconds: float
    """How long each sale is timed, after a second that is not."""
    cells: dict[str, tuple[str, ...]]
    """By database, the slugs of the loads."""
    waiting: tuple[tuple[str, int, tuple[str, ...]], ...]
    """The database, how many wait, behind which guards."""
    bystanders: tuple[str, ...]
    """Behind which guards somebody looks on."""
    left_out: tuple[str, ...] = ()
    """Guards that are not measured."""
    processes: int = 3
    lookers: int = 5
    redis_pool: int = 8
    database_pool: int = 10


LONG = Plan(
    rounds=3,
    seconds=6,
    cells={
        POSTGRESQL: ("one", "ten", "hundred", "few", "paying"),
        SQLITE: ("one", "ten", "hundred"),
    },
    waiting=(
        (POSTGRESQL, 100, (ROW, REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
        (SQLITE, 100, (REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
        (POSTGRESQL, 1000, (REDIS_PY, PYTHON_REDIS_LOCK, OURS)),
    ),
    bystanders=(NONE, UPDATE, ROW, REDIS_PY, PYTHON_REDIS_LOCK, OURS),
)
QUICK = Plan(
    rounds=1,
    seconds=1,
    cells={POSTGRESQL: ("one",), SQLITE: ("one",)},
    waiting=((POSTGRESQL, 200, (OURS,)),),
    bystanders=(),
    left_out=(EAGER,),
)
