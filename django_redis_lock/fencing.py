"""Model rows that reject the writes of an earlier holder of a lock.

Each row stores the highest fence that has written it. The ``UPDATE`` itself compares the two, so
nothing can happen in between (Kleppmann, "How to do distributed locking", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from django.db import connections, models, transaction
from django.db.models.query import ModelIterable

from django_redis_lock.exceptions import StaleFence
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.django_private import replace_model_iterable

Row = TypeVar("Row", bound="models.Model")
Method = TypeVar("Method", bound=Callable[..., Any])


class _Guard:
    """The fence of some writes, and the name of its lock if known."""

    __slots__ = ("fence", "name")

    def __init__(self, held: Lock | int) -> None:
        if isinstance(held, bool) or not isinstance(held, Lock | int):
            raise TypeError(f"fenced() needs a held lock or its fence, not {held!r}.")
        self.name = "" if isinstance(held, int) else held.name
        self.fence = held if isinstance(held, int) else held.held_lease().fence

    def raise_if_stale(self, rows: models.QuerySet[Any, Any]) -> None:
        if rows.filter(fence__gt=self.fence).exists():
            by = f"lock {self.name!r}" if self.name else "a lock"
            raise StaleFence(
                f"Fence {self.fence} is out of date: a later holder of {by} has written this row.",
                name=self.name,
                fence=self.fence,
            )


def _never_fenced(method: Method, owner: Callable[[], type]) -> Method:
    """Return an override of a method in ``owner`` that refuses it under a fence."""

    @wraps(method)
    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if self._guard is not None:
            raise TypeError(
                f"{method.__name__}() can't be fenced. Use update(), bulk_update(), create(), or "
                f"save() of an instance. Instead of deleting a row, mark it as deleted, because "
                f"its fence must remain."
            )
        return getattr(super(owner(), self), method.__name__)(*args, **options)

    return cast("Method", refusing)


class _FencedIterable(ModelIterable):  # type: ignore[type-arg]
    """Model instances that are saved with the fence of their query."""

    def __iter__(self) -> Iterator[Any]:
        queryset: Any = self.queryset
        for instance in super().__iter__():
            instance._guard = queryset._guard
            yield instance


class FencedQuerySet(models.QuerySet[Row, Row]):
    """A queryset that can write with a fence."""

    _guard: _Guard | None = None

    def fenced(self, held: Lock | int) -> Self:
        """Return a queryset whose writes carry the fence of a held lock, or the given fence.

        ``update()`` is one ``UPDATE`` of the rows whose stored fence is not higher, and stores this
        one. If that writes nothing, one more query checks why: ``update()`` returns 0 if no row
        matched, and raises ``StaleFence`` if a later holder has written one. Instances from the
        queryset are saved in the same way, and ``create()`` stores the fence. Raises
        ``LockNotOwned`` for a lock that is not held, ``TypeError`` for fields in several tables.
        """
        parents = cast("Any", self.model._meta.concrete_model)._meta.parents
        if parents:
            raise TypeError(
                f"{self.model.__name__} can't be fenced: its fields are in several tables, which "
                f"no single UPDATE can write. Inherit from abstract models only."
            )
        fenced = self.all()
        fenced._guard = _Guard(held)
        replace_model_iterable(fenced, _FencedIterable)
        return fenced

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._guard = self._guard
        return clone

    def update(self, **values: Any) -> int:
        """Write values to all rows, and return how many there were; see ``fenced``."""
        if self._guard is None:
            return super().update(**values)
        self._for_write = True
        rows = self.using(self.db)._in_one_table().filter(fence__lte=self._guard.fence)
        written = super(FencedQuerySet, rows).update(**{**values, "fence": self._guard.fence})
        self._result_cache = None
        if not written:
            self._guard.raise_if_stale(self.using(self.db))
        return written

    def _in_one_table(self) -> Self:
        """Return the same rows without joins.

        With joins Django moves all conditions into a subquery. But a database that has waited for
        another write evaluates only the conditions of the ``UPDATE`` itself again.
        """
        self.query.get_initial_alias()
        if self.query.count_active_tables() == 1:
            return self
        keys: Any = self.order_by().values("pk")
        if not connections[self.db].features.update_can_self_select:
            keys = list(keys.values_list("pk", flat=True))
        rows = type(self)(self.model, using=self.db).filter(pk__in=keys)
        rows._guard = self._guard
        return rows

    def bulk_update(self, objs: Iterable[Row], fields: Any, batch_size: int | None = None) -> int:
        """Write fields of many objects, or of none if one is stale; see ``fenced``."""
        if self._guard is None:
            return super().bulk_update(objs, fields, batch_size)
        objs = tuple(objs)
        self._for_write = True
        with transaction.atomic(using=self.db):
            written = super().bulk_update(objs, fields, batch_size)
            if written < len(objs):
                rows: Any = models.QuerySet(self.model, using=self.db)  # a manager may hide some
                self._guard.raise_if_stale(rows.filter(pk__in=[each.pk for each in objs]))
        return written

    def create(self, **values: Any) -> Row:
        """Create a row with the fence."""
        if self._guard is None:
            return super().create(**values)
        instance: Any = super().create(**{**values, "fence": self._guard.fence})
        instance._guard = self._guard
        return cast("Row", instance)

    bulk_create = _never_fenced(models.QuerySet.bulk_create, lambda: FencedQuerySet)
    get_or_create = _never_fenced(models.QuerySet.get_or_create, lambda: FencedQuerySet)
    update_or_create = _never_fenced(models.QuerySet.update_or_create, lambda: FencedQuerySet)
    delete = _never_fenced(models.QuerySet.delete, lambda: FencedQuerySet)


if TYPE_CHECKING:

    class FencedManager(models.Manager[Row]):
        """The manager of fenced models, with the methods of their queryset."""

        def fenced(self, held: Lock | int) -> FencedQuerySet[Row]: ...

else:
    FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")


class Fenced(models.Model):
    """An abstract model whose rows store the highest fence that has written them.

    Write while holding a lock with ``Product.objects.fenced(held)`` or
    ``product.fenced(held).save()``. A manager of your own is made by
    ``FencedManager.from_queryset()`` of a subclass of ``FencedQuerySet``. Writes without a fence
    succeed, and leave the stored fence alone.
    """

    fence: models.BigIntegerField[int, int] = models.BigIntegerField(
        default=0, db_default=0, editable=False
    )

    objects: ClassVar[FencedManager[Self]] = FencedManager()

    _guard: _Guard | None = None

    class Meta:
        abstract = True

    def fenced(self, held: Lock | int) -> Self:
        """Have this instance saved with the fence of a held lock, or the given fence; return it.

        ``save()`` then raises ``StaleFence`` if a later holder has written the row.
        """
        rows: Any = FencedQuerySet(type(self)).fenced(held)
        self._guard = rows._guard
        return self

    def save_base(self, *args: Any, **options: Any) -> None:
        if self._guard is None:
            super().save_base(*args, **options)
            return
        before, self.fence = self.fence, self._guard.fence
        if options.get("update_fields") is not None:
            options["update_fields"] = {*options["update_fields"], "fence"}
        elif not self._state.adding and not options.get("force_insert"):
            options["force_update"] = True  # never creates a row again that was deleted
        try:
            super().save_base(*args, **options)
        except BaseException:
            self.fence = before
            raise

    def _do_update(self, base_qs: Any, *args: Any, **options: Any) -> Any:
        if self._guard is None:
            return super()._do_update(base_qs, *args, **options)
        rows = base_qs.filter(fence__lte=self._guard.fence)
        updated = super()._do_update(rows, *args, **options)
        if not updated:
            self._guard.raise_if_stale(base_qs.filter(pk=self.pk))
        return updated

    delete = _never_fenced(models.Model.delete, lambda: Fenced)
