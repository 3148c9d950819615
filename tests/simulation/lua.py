"""Runs scripts in Lua 5.1, the Lua of Redis, with ``redis.call`` and ``redis.pcall``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51
from redis.exceptions import ResponseError

CODES = ("WRONGTYPE ", "READONLY ", "OOM ", "NOPERM ", "NOSCRIPT ", "MOVED ", "CLUSTERDOWN ")


class Status(bytes):
    """A reply such as OK, which scripts get as a table."""


class Lua:
    """The interpreter, which all servers share: one runs a script at a time."""

    def __init__(self) -> None:
        self._runtime = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._table = self._runtime.table_from
        self._scripts: dict[bytes, Callable[..., Any]] = {}
        self._execute: Callable[[Sequence[bytes]], Any]
        functions = {b"call": self._call, b"pcall": self._pcall, b"sha1hex": _sha1hex}
        self._runtime.globals()[b"redis"] = self._table(functions)

    def run(
        self,
        source: bytes,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        execute: Callable[[Sequence[bytes]], Any],
    ) -> Any:
        """Return a script's reply; ``execute`` carries out its commands."""
        script = self._scripts.get(source)
        if script is None:
            script = self._runtime.execute(b"return function(KEYS, ARGV)\n%b\nend" % source)
            self._scripts[source] = script
        self._execute = execute
        try:
            return self._reply(script(self._table(keys), self._table(args)))
        except lua51.LuaError as error:
            raise ResponseError(f"user_script: {error}") from error

    def _call(self, *words: Any) -> Any:
        return self._value(self._execute([_word(word) for word in words]))

    def _pcall(self, *words: Any) -> Any:
        try:
            return self._call(*words)
        except ResponseError as error:
            text = str(error)
            coded = text if text.startswith(CODES) else f"ERR {text}"
            return self._table({b"err": coded.encode()})

    def _value(self, reply: Any) -> Any:
        """Return what a script gets for a reply."""
        if reply is None:
            return False
        if type(reply) is list:
            return self._table([self._value(item) for item in reply])
        return self._table({b"ok": bytes(reply)}) if type(reply) is Status else reply

    def _reply(self, value: Any) -> Any:
        """Return the reply for what a script returns."""
        if value is None or value is False:
            return None
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | float):  # True is 1
            return int(value)
        if value[b"err"] is not None:
            raise ResponseError(value[b"err"].decode().removeprefix("ERR "))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        items = []
        while (item := value[len(items) + 1]) is not None:
            items.append(self._reply(item))
        return items


def _word(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"%d" % value if math.isfinite(value) and value == int(value) else b"%.17g" % value


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


lua = Lua()
