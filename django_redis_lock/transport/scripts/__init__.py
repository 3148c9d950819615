"""The Lua scripts, loaded once, and the packing of a call to one, or of a plain command."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

from django_redis_lock.transport.resp import bulk, pack, pack_onto


class Script:
    """A Lua script and what a server needs to run it.

    A call is packed by hand into the bytes of an EVALSHA: the constant head is made once a
    script, and the rest in one go, which takes a third off the client's share of a call.
    """

    def __init__(self, name: str, *, shared: str = "") -> None:
        self.name = name
        self.source = shared + (files(__package__) / f"{name}.lua").read_text(encoding="ascii")
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self._by_sha = bulk("EVALSHA") + bulk(self.sha)
        self._by_source = bulk("EVAL") + bulk(self.source)

    def pack(self, keys: Sequence[str], args: Sequence[str], *, with_source: bool = False) -> bytes:
        """Return the call as one RESP command; ``with_source`` teaches it to the server again."""
        head = self._by_source if with_source else self._by_sha
        return pack_onto(head, 2, [str(len(keys)), *keys, *args])


class Command:
    """A command without a script, packed as one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pack(self, keys: Sequence[str], args: Sequence[str], *, with_source: bool = False) -> bytes:
        """Return the call as one RESP command."""
        return pack([self.name, *keys, *args])


_COMMON = (files(__package__) / "common.lua").read_text(encoding="ascii")
_MANY = (files(__package__) / "many.lua").read_text(encoding="ascii")

ACQUIRE = Script("acquire", shared=_COMMON)
RELEASE = Script("release", shared=_COMMON)
CLAIM = Script("claim")
ACQUIRE_MANY = Script("acquire_many", shared=_COMMON + _MANY)
RELEASE_MANY = Script("release_many", shared=_COMMON + _MANY)
TAKE_OVER = Script("take_over", shared=_COMMON)
FORCE_RELEASE = Script("force_release", shared=_COMMON)
RENEW = Script("renew", shared=_COMMON)
NOTE_LOSSES = Script("note_losses")
HISTORY = Script("history")
WAITING = Script("waiting")
INSPECT = Script("inspect")
INDEX = Script("index")
GET = Command("GET")

_QUORUM_COMMON = (files(__package__) / "quorum_common.lua").read_text(encoding="ascii")

QUORUM_ACQUIRE = Script("quorum_acquire", shared=_QUORUM_COMMON)
QUORUM_TAKE_OVER = Script("quorum_take_over", shared=_QUORUM_COMMON)
QUORUM_SETTLE = Script("quorum_settle")
QUORUM_RELEASE = Script("quorum_release")
QUORUM_FENCE = Script("quorum_fence", shared=_QUORUM_COMMON)
QUORUM_ADMIT = Script("quorum_admit")
