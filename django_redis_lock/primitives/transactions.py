"""The one gate of every exit from a hold: whether a database transaction of the hold still runs.

An exit is a release, a detach or a downgrade. What waits for the end of a transaction, and how, is
in ``exits``, which is imported when something waits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections

from django_redis_lock.primitives.held import Held
from django_redis_lock.support.django_private import is_of_test_case, savepoint_in_test

if TYPE_CHECKING:
    from django_redis_lock.primitives.exits import Leave

logger = logging.getLogger("django_redis_lock")


def defer(held: Sequence[Held], leave: Leave, *, ends: bool = True) -> bool:
    """Have ``leave`` carry out an exit from holds when the open transactions of this thread end.

    ``ends`` says whether that ends the holds. Returns False if it has to be carried out now: there
    is no transaction, a loss was noticed, the app is not in ``INSTALLED_APPS``, or, with a warning,
    all handles that had the lock have ``after_commit=False``.
    """
    databases = [each for each in connections.all(initialized_only=True) if _in_transaction(each)]
    if not databases or any(each._held().lost for each in held):
        return False
    if not (apps.ready and apps.is_installed("django_redis_lock")):
        return False
    if not any(each._held().after_commit for each in held):
        logger.warning(
            "Lock %s was released before the transaction on %s ended, so the next holder may not "
            "see what it wrote. Leave out after_commit=False.",
            ", ".join(repr(each.name) for each in held),
            ", ".join(repr(connection.alias) for connection in databases),
        )
        return False
    from django_redis_lock.primitives import exits

    exits.wait(held, leave, databases, ends=ends)
    return True


def _in_transaction(connection: Any) -> bool:
    """Whether a transaction is open, other than that of a ``TestCase``."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if not connection.in_atomic_block:
        return not connection.autocommit
    blocks = connection.atomic_blocks
    in_test = bool(blocks) and is_of_test_case(blocks[0])
    return not in_test or savepoint_in_test(connection) is not None
