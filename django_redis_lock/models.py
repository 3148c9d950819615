"""The model of held locks, for the admin, its permissions and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_redis_lock.support.text import escape_unprintable

if TYPE_CHECKING:
    from django_redis_lock.protocol.records import Holder


class HeldLocks(models.Manager["HeldLock"]):
    """Returns empty querysets, because there is no table; so ``dumpdata`` skips the model."""

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A held lock, on a server of ``LOCKS`` and in no table.

    The admin and its log need its content type and permissions, which the migration creates.
    """

    key: models.TextField[str, str] = models.TextField(primary_key=True, editable=False)
    using: models.TextField[str, str] = models.TextField(_("alias"), editable=False)
    name: models.TextField[str, str] = models.TextField(_("name"), editable=False)

    holder: Holder | None = None
    """The holder when its server was asked; ``None`` if it was free or not asked for."""
    token_id = ""  # whom it was shown with as the holder
    follows = False  # whether it is in the list below another holder of the same lock
    may_release = False  # whether the user of the page may release it

    objects: ClassVar[HeldLocks] = HeldLocks()

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions: ClassVar[list[Any]] = [("release_heldlock", "Can release held locks")]
        base_manager_name = "objects"

    def __str__(self) -> str:
        return escape_unprintable(self.name)

    @property
    def hold(self) -> str:
        """What a form says of the lock and the holder that it was shown with."""
        return f"{self.token_id}:{quote(self.pk)}"

    @classmethod
    def of(cls, using: str, name: str, token_id: str = "") -> HeldLock:
        """Return the object for a lock, held or not; the admin's log refers to its ``pk``."""
        lock = cls(key=f"{quote(using, safe='')}:{name}", using=using, name=name)
        lock.token_id = token_id
        return lock

    @classmethod
    def of_holder(cls, holder: Holder) -> HeldLock:
        lock = cls.of(holder.using, holder.name, holder.token_id)
        lock.holder = holder
        return lock

    @classmethod
    def from_key(cls, key: str) -> HeldLock | None:
        """Return the object with a primary key, ``None`` for an invalid one."""
        using, colon, name = key.partition(":")
        return cls.of(unquote(using), name) if using and colon and name else None
