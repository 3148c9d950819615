"""What backends do not promise, by the name of their class."""

from __future__ import annotations

CAPABILITIES = ("fencing", "queue", "listing", "passing", "records")
"""What a backend may promise: fences that rise; service in order of arrival; ``holders()``;
``take_over()`` and ``detach()``; records of the holders. Those not named below
promise all."""
LACKS = {
    "DummyLockBackend": frozenset(CAPABILITIES),
    "GetSetLockBackend": frozenset({"fencing", "queue", "passing", "records"}),
    "RedlockLockBackend": frozenset({"queue"}),
}


def lacks(backend: object) -> frozenset[str]:
    """Return the capabilities that a backend does not have."""
    return LACKS.get(type(backend).__name__, frozenset())
