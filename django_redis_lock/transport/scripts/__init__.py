"""The Lua scripts, loaded once, and how calls to them are packed in RESP."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any


def pack(items: Iterable[bytes | str | int]) -> bytes:
    """Return a command as RESP."""
    packed = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    text = b"".join([b"$%d\r\n%b\r\n" % (len(item), item) for item in packed])
    return b"*%d\r\n%b" % (len(packed), text)


class _Lengths(dict[int, str]):
    """The prefix of an item by its length; formatting the number takes longer than the rest."""

    def __missing__(self, length: int) -> str:
        prefix = self[length] = f"${length}\r\n"
        return prefix


_LENGTHS = _Lengths()


def _bulk(item: str) -> str:
    return f"${len(item)}\r\n{item}\r\n"


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
        self._by_sha = _bulk("EVALSHA") + _bulk(self.sha)
        self._by_source = _bulk("EVAL") + _bulk(self.source)

    def pack(self, keys: Sequence[str], args: Sequence[str], *, with_source: bool = False) -> bytes:
        """Return a call as RESP; ``with_source`` sends the script itself and not its digest."""
        items = [str(len(keys)), *keys, *args]
        text = "\r\n".join([_LENGTHS[len(item)] + item for item in items]) + "\r\n"
        if not text.isascii():
            # Lengths count bytes: let each character stand for one byte of the UTF-8.
            text = "".join([_bulk(item.encode().decode("latin-1")) for item in items])
        head = self._by_source if with_source else self._by_sha
        return f"*{len(items) + 2}\r\n{head}{text}".encode("latin-1")


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
QUORUM_SETTLE = Script("quorum_settle")
QUORUM_RELEASE = Script("base", "quorum_release")
QUORUM_FENCE = Script("base", "quorum_common", "quorum_fence")
QUORUM_ADMIT = Script("quorum_admit")
