"""The Lua scripts, loaded once, and how calls to them are packed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from django_redis_lock.transport.resp import bulk, pack, pack_onto


class Script:
    """A Lua script, made of the named ``.lua`` files.

    The constant head of an EVALSHA is packed once for each script, and the rest of a call in one
    go: that takes a third off the client's share of a call.
    """

    def __init__(self, *names: str) -> None:
        parts = [(files(__package__) / f"{name}.lua").read_text(encoding="ascii") for name in names]
        self.source = "".join(parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self._by_sha = bulk("EVALSHA") + bulk(self.sha)
        self._by_source = bulk("EVAL") + bulk(self.source)

    def pack(self, keys: Sequence[str], args: Sequence[str], *, with_source: bool = False) -> bytes:
        """Return a call as RESP; ``with_source`` sends the script itself and not its digest."""
        head = self._by_source if with_source else self._by_sha
        return pack_onto(head, 2, [str(len(keys)), *keys, *args])


class Command:
    """A command that is called like a script."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pack(self, keys: Sequence[str], args: Sequence[Any], *, with_source: bool = False) -> bytes:
        """Return a call as RESP."""
        return pack([self.name, *keys, *args])


ACQUIRE = Script("clock", "prune", "common", "acquire", "gone", "join")
RELEASE = Script("clock", "holds", "common", "release")
CLAIM = Script("claim")
TAKE_OVER = Script("clock", "holds", "digest", "common", "take_over")
FORCE_RELEASE = Script("clock", "digest", "common", "force_release")
RENEW = Script("clock", "holds", "common", "renew")
HISTORY = Script("history")
WAITING = Script("clock", "gone", "waiting")
INSPECT = Script("clock", "gone", "inspect")
INDEX = Script("clock", "index")
GET = Command("GET")

QUORUM_ACQUIRE = Script("clock", "prune", "digest", "quorum_common", "quorum_acquire")
QUORUM_SETTLE = Script("quorum_settle")
QUORUM_RELEASE = Script("holds", "quorum_release")
QUORUM_FENCE = Script("clock", "quorum_common", "quorum_fence")
QUORUM_ADMIT = Script("quorum_admit")
