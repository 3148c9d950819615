"""The Lua scripts, loaded once, and how calls to them are packed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from django_redis_lock.transport.resp import bulk, pack, pack_onto

_INCLUDE = re.compile(r"^ *-- include (\w+)\n", re.MULTILINE)


def _read(name: str, included: set[str]) -> str:
    """Return the source of a file with the files that it includes, each of them once."""
    if name in included:
        return ""
    included.add(name)
    source = (files(__package__) / f"{name}.lua").read_text(encoding="ascii")
    return _INCLUDE.sub(lambda found: _read(found[1], included), source)


class Script:
    """A Lua script, made of the named ``.lua`` files, and of those that they include.

    The constant head of an EVALSHA is packed once for each script, and the rest of a call in one
    go: that takes a third off the client's share of a call.
    """

    def __init__(self, *names: str) -> None:
        included: set[str] = set()
        self.source = "".join([_read(name, included) for name in names])
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


ACQUIRE = Script("acquire")
RELEASE = Script("release")
CLAIM = Script("claim")
TAKE_OVER = Script("take_over")
FORCE_RELEASE = Script("force_release")
RENEW = Script("renew")
HISTORY = Script("history")
WAITING = Script("waiting")
INSPECT = Script("inspect")
INDEX = Script("index")
GET = Command("GET")

QUORUM_ACQUIRE = Script("base", "quorum_common", "quorum_acquire")
QUORUM_TAKE_OVER = Script("base", "quorum_common", "quorum_take_over")
QUORUM_SETTLE = Script("quorum_settle")
QUORUM_RELEASE = Script("base", "quorum_release")
QUORUM_FENCE = Script("base", "quorum_common", "quorum_fence")
QUORUM_ADMIT = Script("quorum_admit")
