"""The model that gives held locks their place in Django's admin, permissions and log."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote, unquote

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_redis_lock.protocol.attention import Attention
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


class HeldLocks(models.Manager["HeldLock"]):
    """Finds nothing, without asking the database: there is no table.

    So whatever walks through all models, such as ``dumpdata``, passes over this one.
    """

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        """Return an empty query."""
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that somebody holds. It lives on a server of ``LOCKS`` and has no table.

    The migration brings its content type and its permissions, ``view_heldlock`` and
    ``release_heldlock``, which are what the admin and its log need of a model.
    """

    key: models.TextField[str, str] = models.TextField(primary_key=True, editable=False)
    using: models.TextField[str, str] = models.TextField(_("backend"), editable=False)
    name: models.TextField[str, str] = models.TextField(_("name"), editable=False)

    holder: Holder | None = None
    """Who held it when its server was asked; ``None`` when nobody did, or nobody asked."""
    attention: Attention | None = None
    """What is wrong with its hold, as far as is known."""
    may_release = False
    """Whether the user that it is shown to may release it."""

    objects: ClassVar[HeldLocks] = HeldLocks()

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions: ClassVar[list[Any]] = [("release_heldlock", "Can release held locks")]
        base_manager_name = "objects"

    def __str__(self) -> str:
        return visible(self.name)

    @classmethod
    def of(cls, using: str, name: str) -> HeldLock:
        """Return the object that stands for a lock, whether or not somebody holds it.

        Its ``pk`` is what the admin's log keeps as ``object_id``.
        """
        return cls(key=f"{quote(using, safe='')}:{name}", using=using, name=name)

    @classmethod
    def from_key(cls, key: str) -> HeldLock | None:
        """Return the object with a primary key, or ``None`` if it is not one of ours."""
        using, colon, name = key.partition(":")
        return cls.of(unquote(using), name) if using and colon and name else None
