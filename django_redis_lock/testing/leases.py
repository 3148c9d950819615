"""The leases of this process, and what a test does to their renewal.

It is the only module here that uses what the renewer keeps to itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from time import monotonic

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import LONGEST_CALL, Entry, renewer
from django_redis_lock.protocol import lease as leases
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.protocol.records import token_id
from django_redis_lock.support.process import current_process

made: weakref.WeakSet[Lease] = weakref.WeakSet() if leases.made is None else leases.made
leases.made = made  # from here on


def lease_of(hold: str) -> Lease | None:
    """Return the lease of this process whose lock has a ``token_id``."""
    mine = current_process()
    for lease in [*made]:
        if lease.process is mine and token_id(lease.token.encode()) == hold:
            return lease
    return None


def stop_renewing(lease: Lease | None) -> Entry | None:
    """Stop renewing a lease; return what it was renewed by."""
    return None if lease is None else renewer.entries.pop(lease.token, None)


def renew_now(lease: Lease, entry: Entry) -> None:
    """Renew a lease in this thread, which reports it if it is lost."""
    entry.due = monotonic() + 60.0  # this thread does it
    renewer.entries[lease.token] = entry
    entry.server.renew([entry], monotonic() + LONGEST_CALL)


def abandon(lease: Lease) -> None:
    """Have nobody in this process renew, enter or miss a lock that a test has left."""
    renewer.discard(lease)
    lease.lost = lease.reported = True


def settle(backends: Iterable[BaseLockBackend]) -> None:
    """Send what is still to be sent to some backends, and drop what does not arrive."""
    renewer.at_exit()
    for server in [*renewer.servers.values()]:
        if server.backend in backends:
            server.withdrawals.clear()
