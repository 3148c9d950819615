"""Clients that carry out the operations of ``optimistic``, for servers that run no scripts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError, WatchError

from django_redis_lock.clients import AsyncClient, BlockingClient, Wire
from django_redis_lock.line import Command, Operation, Read, Write
from django_redis_lock.optimistic import OPERATIONS
from django_redis_lock.packing import Packed

TRIES = 100
"""How often an operation begins anew because others changed what it had read."""
LONGEST_PAUSE = 0.05
"""Seconds between two of these tries at the most."""


class TransactingClient(BlockingClient):
    """Carries out calls in transactions, each over one connection of the pool."""

    _publishes = True

    def call_all(self, batch: Sequence[Packed]) -> list[Any]:
        """Carry out calls one after the other; return the answer, or the server's error, to each.

        Raises ``RedisError`` and ``OSError``.
        """
        return [self._transact(packed) for packed in batch]

    def _transact(self, packed: Packed) -> Any:
        packed.sending()
        for attempt in range(TRIES):
            try:
                return self._carry_out(packed)
            except _RefusedError:
                self._publishes = False
            except WatchError:
                time.sleep(_pause(attempt))
        raise _too_busy()

    def _carry_out(self, packed: Packed) -> Any:
        connection, since = self._take()
        try:
            answer = _converse(connection, Course(packed, publishes=self._publishes))
        except (WatchError, _RefusedError):  # the server has answered all, and watches no more
            self._pool.release(connection)
            raise
        except BaseException:
            connection.disconnect()
            self._pool.release(connection)
            raise
        self._keep(connection, since)
        return answer


def _converse(connection: Any, course: Course) -> Any:
    replies: list[Any] | None = None
    # Below redis-py, which would connect again in the middle, and what was watched be forgotten.
    wire = connection._sock
    while (commands := course.next(replies)) is not None:
        for part in connection.pack_commands(commands):
            wire.sendall(part)
        replies = [_read(connection) for _ in commands]
    return course.answer


class AsyncTransactingClient(AsyncClient):
    """Carries out calls in transactions, one after the other on a connection for each loop."""

    _publishes = True

    async def call(self, packed: Packed) -> Any:
        """Carry out a call and return its answer. Raises ``RedisError`` and ``OSError``."""
        wire = await self.wire()
        packed.sending()
        for attempt in range(TRIES):
            course = Course(packed, publishes=self._publishes)
            try:
                return await wire.carry_out(course)
            except _RefusedError:
                self._publishes = False
            except WatchError:
                await asyncio.sleep(_pause(attempt))
        raise _too_busy()


class _Conversation(Wire):
    """One connection of one event loop, for one transaction at a time."""

    async def carry_out(self, course: Course) -> Any:
        async with self._writing:
            try:
                async with asyncio.timeout(self._timeout):
                    if not self._connection.is_connected:
                        await self._connect()
                replies: list[Any] | None = None
                while (commands := course.next(replies)) is not None:
                    packed = self._connection.pack_commands(commands)
                    async with asyncio.timeout(self._timeout):
                        await self._connection.send_packed_command(packed, check_health=False)
                        replies = [await self._answer() for _ in commands]
            except (WatchError, _RefusedError):
                raise
            except BaseException as error:  # cancelled, it is in the middle of something too
                await self._connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise redis.exceptions.TimeoutError("Timeout in a transaction") from error
                raise
            return course.answer


AsyncTransactingClient.wire_class = _Conversation


class _RefusedError(Exception):
    """The user may not publish."""


class Course:
    """One try at an operation: turns its steps into commands, and replies into what it wants."""

    def __init__(self, packed: Packed, *, publishes: bool) -> None:
        make: Callable[..., Operation] = OPERATIONS[packed.script.name]
        self._steps = make(packed.keys, packed.args, publishes=publishes)
        self._step: Read | Write | None = None
        self._watching = False
        self._over = False
        self.answer: Any = None

    def next(self, replies: list[Any] | None) -> list[tuple[Any, ...]] | None:
        """Take in the replies to the last commands; return the next ones, ``None`` at the end.

        Raises the error of a command, and ``WatchError`` when what was read is no longer so.
        """
        if self._over:
            return None
        try:
            given = None if replies is None else self._read(replies)
            step = next(self._steps) if given is None else self._steps.send(given)
        except StopIteration as stop:
            self.answer = stop.value
            self._over = True
            return [("UNWATCH",)] if self._watching else None
        self._step = step
        if isinstance(step, Write):
            self._watching = False
            return _whole(step.commands)
        commands = _whole(step.commands) if step.whole else [*map(_encoded, step.commands)]
        if step.watch:
            self._watching = True
            commands.insert(0, _encoded(("WATCH", *step.watch)))
        return commands

    def _read(self, replies: list[Any]) -> list[Any]:
        step = self._step
        assert step is not None
        if isinstance(step, Write) or step.whole:
            last = replies[-1]
            if isinstance(last, ResponseError):
                self._refuse(step.commands, replies)
                raise next(item for item in replies if isinstance(item, ResponseError))
            if last is None:
                raise WatchError("What was read has changed")
            replies = last
        elif step.watch:
            _raise_error(replies[:1])
            replies = replies[1:]
        if isinstance(step, Write) or not step.lenient:
            _raise_error(replies)
        return replies

    def _refuse(self, commands: Sequence[Command], replies: list[Any]) -> None:
        """Raise ``_RefusedError`` if it was a message that the server did not take."""
        for command, reply in zip(commands, replies[1:], strict=False):
            if isinstance(reply, ResponseError):
                if command[0] == "PUBLISH":
                    raise _RefusedError
                return


def _whole(commands: Sequence[Command]) -> list[tuple[Any, ...]]:
    return [("MULTI",), *map(_encoded, commands), ("EXEC",)]


def _encoded(command: Command) -> tuple[Any, ...]:
    return tuple(item.encode() if isinstance(item, str) else item for item in command)


def _raise_error(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply


def _read(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _pause(attempt: int) -> float:
    return random.uniform(0, min(LONGEST_PAUSE, 0.001 * 2 ** min(attempt, 10)))


def _too_busy() -> WatchError:
    return WatchError(f"others changed what was read {TRIES} times in a row")
