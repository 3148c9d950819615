"""The plain commands that the SETNX and GETSET scheme sends."""

from __future__ import annotations

from typing import Any

from django_redis_lock.protocol.calls import Step

Word = bytes | str | int


class PlainCommand(Step):
    """A command of the server, its name first."""

    __slots__ = ("words",)

    def __init__(self, *words: Word) -> None:
        self.words = words

    def do(self, port: Any) -> Any:
        return port.send(self.words)

    async def ado(self, port: Any) -> Any:
        return await port.asend(self.words)
