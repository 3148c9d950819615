"""The leases of this process, and what a test does to their renewal.

It is the only module here that uses what the renewer keeps to itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from time import monotonic

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import Kept, ServerRenewer, renewer
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


def stop_renewing(lease: Lease | None) -> tuple[ServerRenewer, Kept] | None:
    """Stop renewing a lease; return what renewed it."""
    if lease is None:
        return None
    with renewer.mutex:
        server = renewer._leases.get(lease.token)
        kept = None if server is None else server.leases.get(lease.token)
        renewer.discard(lease)
    return None if server is None or kept is None else (server, kept)


def renew_now(lease: Lease, renewal: tuple[ServerRenewer, Kept]) -> None:
    """Renew a lease in this thread, which reports it if it is lost."""
    server, kept = renewal
    kept.tried = False
    kept.soon = kept.due = monotonic() + 60.0  # this thread does it
    with renewer.mutex:
        renewer.assign(kept, server._backend)
        server = renewer._leases[lease.token]
    server._renew_batch([(kept, lease)])


def abandon(lease: Lease) -> None:
    """Have nobody in this process renew, enter or miss a lock that a test has left."""
    renewer.discard(lease)
    lease.lost = lease.reported = True


def settle(backends: Iterable[BaseLockBackend]) -> None:
    """Send what is still to be sent to some backends, and drop what does not arrive."""
    renewer.at_exit()
    with renewer.mutex:
        for server in list(renewer._servers.values()):
            if server._backend in backends:
                server.withdrawals.clear()
