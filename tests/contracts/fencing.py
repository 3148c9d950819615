"""What fenced rows promise on any database; each database has a test class. The fixture
``database`` makes the alias ``first``, with the tables of ``fenced_models``."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, models
from django.db.models import F
from django.db.transaction import atomic
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockError, LockNotOwned, StaleFence
from django_redis_lock.fencing import FencedManager, FencedQuerySet
from tests.apps.fenced_models import TABLES, Branch, Note, Offer, Product
from tests.contracts.transactions import forget_connection
from tests.tools import Background, Child, eventually

ROUTER = "tests.contracts.fencing.Router"


class Router:
    """Sends every query of the tests' models to the alias ``first``."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "first" if model in TABLES else None

    db_for_write = db_for_read


class WithReplica(Router):
    """Reads from an alias that is away."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica"


@contextlib.contextmanager
def tables() -> Iterator[None]:
    """Create the tables again, with one product and a stock of ten."""
    connection = connections["first"]
    present = connection.introspection.table_names()
    with connection.schema_editor() as editor:
        for model in reversed(TABLES):
            if model._meta.db_table in present:
                editor.delete_model(model)
        for model in TABLES:
            editor.create_model(model)
    shop = Branch.objects.using("first").create(name="Corner")
    Product.objects.using("first").create(shop=shop, stock=10)
    with override_settings(DATABASE_ROUTERS=[ROUTER]):
        yield


@pytest.mark.usefixtures("server", "database")
class FencingContract:
    @staticmethod
    def row() -> Product:
        return Product.objects.get(pk=1)

    def test_update_stores_the_fence(self, name: str) -> None:
        for stock in (9, 8):
            with lock(name) as held:
                rows = Product.objects.fenced(held).filter(pk=1)
                assert rows.update(stock=F("stock") - 1) == 1
                assert (self.row().stock, self.row().fence) == (stock, held.fence)
        with lock(name) as held:
            assert Product.objects.fenced(held.fence).update(stock=1) == 1
            assert Product.objects.fenced(held).update(stock=2, fence=0) == 1
            assert (self.row().stock, self.row().fence) == (2, held.fence)

    def test_stale_update(self, name: str) -> None:
        held = lock(name)
        held.acquire()
        stale, old = Product.objects.fenced(held), held.fence
        locks["default"].force_release(name)
        with lock(name) as later:
            Product.objects.fenced(later).update(stock=5)
        with pytest.raises(StaleFence) as caught:
            stale.filter(pk=1).update(stock=100)
        assert (caught.value.name, caught.value.fence) == (name, old)
        assert isinstance(caught.value, LockError)
        assert self.row().stock == 5
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
        assert (again.name, again.fence, str(again)) == (name, old, str(caught.value))

    def test_queryset_of_ones_own(self, name: str) -> None:
        """Its methods are on the manager made from it, before and after ``fenced()``."""

        class Few(FencedQuerySet[Product]):
            def few(self) -> Any:
                return self.filter(stock__lte=10)

        manager: Any = FencedManager.from_queryset(Few)()
        manager.model = Product
        with lock(name) as held:
            assert manager.few().fenced(held).update(stock=9) == 1
            assert manager.fenced(held).few().update(stock=8) == 1
        assert (self.row().stock, self.row().fence > 0) == (8, True)

    def test_one_statement(self, name: str) -> None:
        """A write is one UPDATE; a query follows only if it wrote nothing."""
        with lock(name) as held, CaptureQueriesContext(connections["first"]) as queries:
            Product.objects.fenced(held).filter(pk=1).update(stock=1)
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]
        with CaptureQueriesContext(connections["first"]) as queries, pytest.raises(StaleFence):
            Product.objects.fenced(1).filter(pk=1).update(stock=1)
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE", "SELECT"]

    @override_settings(DATABASE_ROUTERS=[ROUTER.replace("Router", "WithReplica")])
    def test_writes_do_not_go_to_a_replica(self) -> None:
        assert Product.objects.fenced(20).update(stock=9) == 1
        product = Product.objects.using("first").get(pk=1)
        assert Product.objects.fenced(20).bulk_update([product], ["stock"]) == 1

    def test_nothing_to_write(self) -> None:
        """If no row matches, or the row is gone, 0 is returned, as without a fence."""
        assert Product.objects.fenced(10).filter(pk=2).update(stock=1) == 0
        assert Product.objects.fenced(10).filter(stock__lt=0).update(stock=1) == 0
        Product.objects.update(fence=20)
        assert Product.objects.fenced(10).filter(stock__lt=0).update(stock=1) == 0

    def test_some_rows_are_stale(self) -> None:
        Product.objects.create(pk=2, shop=Branch.objects.get(), stock=10, fence=30)
        assert Product.objects.fenced(20).update(stock=1) == 1
        assert dict(Product.objects.values_list("pk", "stock")) == {1: 1, 2: 10}

    def test_filter_on_a_join(self) -> None:
        """Conditions on other tables leave the fence in the UPDATE itself."""
        rows = Product.objects.filter(shop__name="Corner").order_by("shop__name")
        with CaptureQueriesContext(connections["first"]) as queries:
            assert rows.fenced(20).update(stock=F("stock") + 5) == 1
        (update,) = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
        before = update[: update.index('"fence" <=')]
        assert before.count("(") - before.count(")") <= 1  # in no subquery
        assert self.row().stock == 15
        with pytest.raises(StaleFence):
            rows.fenced(10).update(stock=0)
        assert rows.filter(shop__name="Other").fenced(10).update(stock=0) == 0
        assert self.row().stock == 15

    @pytest.mark.parametrize("update_fields", [None, ["stock"]])
    @pytest.mark.parametrize("from_query", [True, False])
    def test_saved_instance(self, from_query: bool, update_fields: Any) -> None:
        """An instance from a fenced query, or one with a fence of its own, is saved with it."""

        def load(fence: int) -> Product:
            if from_query:
                return Product.objects.fenced(fence).filter(stock__gt=0).get(pk=1)
            return self.row().fenced(fence)

        early, late = load(10), load(20)
        late.stock = 9
        late.save(update_fields=update_fields)
        assert (self.row().stock, self.row().fence) == (9, 20)
        early.stock = 5
        with pytest.raises(StaleFence):
            early.save(update_fields=update_fields)
        assert (self.row().stock, self.row().fence, early.fence) == (9, 20, 0)
        late.save()
        late.save()

    def test_saved_instance_whose_row_is_gone(self) -> None:
        """A late holder does not create a row again that was deleted."""
        product = self.row().fenced(10)
        Product.objects.all().delete()
        with pytest.raises(DatabaseError):
            product.save()
        assert not Product.objects.exists()

    def test_without_a_fence(self) -> None:
        """Other writes succeed as usual, and leave the fence alone."""
        Product.objects.fenced(20).update(stock=9)
        product = self.row()
        product.stock = 8
        product.save()
        Product.objects.update(stock=F("stock") - 1)
        assert (self.row().stock, self.row().fence) == (7, 20)
        product.delete()

    def test_created_rows(self) -> None:
        product = Product.objects.fenced(20).create(shop=Branch.objects.get(), stock=1)
        assert Product.objects.get(pk=product.pk).fence == 20
        product.stock = 2
        product.save()
        new = Product(shop=Branch.objects.get(), stock=1).fenced(30)
        new.save()
        assert Product.objects.get(pk=new.pk).fence == 30

    def test_bulk_update(self) -> None:
        """``bulk_update`` writes all objects, or none if one of them is stale."""
        Product.objects.create(pk=2, shop=Branch.objects.get(), stock=10)
        products = list(Product.objects.order_by("pk"))
        for product in products:
            product.stock = 3
        assert Product.objects.fenced(20).bulk_update(products, ["stock"]) == 2
        assert set(Product.objects.values_list("stock", "fence")) == {(3, 20)}
        Product.objects.fenced(30).filter(pk=2).update(stock=4)
        for batch_size in (None, 1):
            with pytest.raises(StaleFence):
                Product.objects.fenced(25).bulk_update(products, ["stock"], batch_size)
            assert dict(Product.objects.values_list("pk", "fence")) == {1: 20, 2: 30}

    def test_a_row_that_the_manager_hides(self) -> None:
        """A row that a later holder has marked as deleted refuses the writes of an earlier one."""
        notes = [Note.objects.create(pk=pk, text="ours") for pk in (1, 2)]
        Note.objects.fenced(20).filter(pk=1).update(deleted=True)
        with pytest.raises(StaleFence):
            notes[0].fenced(10).save()
        with pytest.raises(StaleFence):
            Note.objects.fenced(10).bulk_update(notes, ["text", "deleted"])
        assert Note.objects.fenced(10).filter(pk=1).update(deleted=False) == 0
        assert list(Note.every.order_by("pk").values_list("deleted", "fence")) == [
            (True, 20),
            (False, 0),
        ]

    def test_what_cannot_be_fenced(self, name: str) -> None:
        """Deletions and creations of unknown rows are refused, as are several tables."""
        rows = Product.objects.fenced(10)
        for refused in (
            rows.delete,
            lambda: rows.bulk_create([]),
            lambda: rows.get_or_create(stock=1),
            lambda: rows.update_or_create(stock=1),
            lambda: rows.get().delete(),
        ):
            with pytest.raises(TypeError, match="can't be fenced"):
                refused()
        with pytest.raises(TypeError, match="in several tables"):
            Offer.objects.fenced(10)
        with pytest.raises(TypeError, match="not True"):
            Product.objects.fenced(True)
        with pytest.raises(LockNotOwned):
            Product.objects.fenced(lock(name))
        assert Product.objects.fenced(10).values_list("stock", flat=True).get() == 10

    @pytest.mark.parametrize(
        "method", ["bulk_create", "get_or_create", "update_or_create", "delete"]
    )
    def test_override_that_comes_after(self, method: str) -> None:
        """What can't be fenced is left, without a fence, to the next class that has a say."""
        later = type("Later", (models.QuerySet,), {method: lambda rows: "later"})
        rows: Any = type("Rows", (FencedQuerySet, later), {})(Product)
        assert getattr(rows, method)() == "later"
        with pytest.raises(TypeError, match="can't be fenced"):
            getattr(rows.fenced(10), method)()

    def test_async(self) -> None:
        async def main() -> None:
            assert await Product.objects.fenced(20).filter(pk=1).aupdate(stock=1) == 1
            with pytest.raises(StaleFence):
                await Product.objects.fenced(10).filter(pk=1).aupdate(stock=2)
            await sync_to_async(forget_connection)("first")

        asyncio.run(main())
        assert self.row().stock == 1

    def test_in_a_transaction(self) -> None:
        """A stale write rolls back the transaction that it is part of."""
        Product.objects.fenced(20).update(label="later")
        with pytest.raises(StaleFence), atomic("first"):
            Branch.objects.update(name="Other")
            Product.objects.fenced(10).update(label="earlier")
        assert Branch.objects.get().name == "Corner"

    def test_paused_holder(self, name: str) -> None:
        """A process that is stopped at work and resumes after its lease can't overwrite."""
        program = """
            from django.conf import settings
            from django.db import connections
            connections.settings["first"] = {**connections.settings["default"], **eval(sys.argv[2])}
            settings.DATABASE_ROUTERS = ["tests.contracts.fencing.Router"]
            from tests.apps.fenced_models import Product
            held = lock(sys.argv[1], timeout=1)
            held.acquire()
            product = Product.objects.fenced(held).get(pk=1)
            say(product.stock)
            hear()
            for write in (
                product.save,
                lambda: Product.objects.fenced(held).filter(pk=1).update(stock=product.stock - 1),
            ):
                product.stock -= 1
                try:
                    write()
                except StaleFence as error:
                    say("stale", error.fence == held.fence)
                else:
                    say("written")
        """
        mine = connections.settings["first"]
        settings = {key: mine[key] for key in ("ENGINE", "NAME", "USER", "HOST", "PORT", "OPTIONS")}
        with Child(program, name, repr(settings)) as child:
            assert child.hear() == "10"
            child.stop()
            with lock(name, blocking_timeout=20) as held:
                assert Product.objects.fenced(held).filter(pk=1).update(stock=5) == 1
                child.say("go on")
                child.go_on()
                assert child.hear() == "stale True"
                assert child.hear() == "stale True"
            assert child.end() == 0
        assert self.row().stock == 5

    def test_late_write_that_waits_for_the_later_one(self) -> None:
        """A write that waits for the write of a later holder fails as stale."""
        waiting: list[int] = []

        def late(rows: Any, fence: int) -> Any:
            try:
                waiting.append(self.session(connections["first"]))
                return rows.fenced(fence).update(stock=0)
            finally:
                forget_connection("first")

        by_shop = Product.objects.filter(shop__name="Corner")
        for fence, rows in ((20, Product.objects.filter(pk=1)), (30, by_shop)):
            waiting.clear()
            with atomic("first"):
                Product.objects.fenced(fence).filter(pk=1).update(stock=5)
                thread = Background(lambda rows=rows, fence=fence: late(rows, fence - 1))
                eventually(lambda: waiting)
                self.wait_until_blocked(waiting[0])
            with pytest.raises(StaleFence):
                thread.outcome()
            assert self.row().stock == 5

    def session(self, connection: Any) -> int:
        """Return the id by which the database knows a connection."""
        return 0

    def wait_until_blocked(self, session: int) -> None:
        """Wait until a connection waits for another, if the database reports that."""
