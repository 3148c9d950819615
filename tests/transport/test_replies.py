"""Replies that are read from the socket of a connection, past redis-py's parser."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redis_lock.transport.clients import NOTHING, Connection
from tests.tools import Background

MIXED: list[tuple[bytes, Any]] = [
    (b":1763800000000000\r\n", 1763800000000000),
    (b":-2\r\n", -2),
    (b"$-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"+OK\r\n", b"OK"),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n$1\r\na\r\n*2\r\n$-1\r\n+b\r\n", [1, b"a", [None, b"b"]]),
]


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the server's end of it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    connection = redis.Connection(protocol=2)
    connection._sock = ours
    yield Connection(connection), theirs
    connection._sock = None
    ours.close()
    theirs.close()


def test_waiting_for_a_message(ends: tuple[Connection, socket.socket]) -> None:
    """It is waited for no longer than that; one that has begun to come is read as a whole."""
    replies, server = ends
    assert replies.receive(0.001) is NOTHING
    server.sendall(b":1\r\n:2\r\n*2\r\n:3\r\n$1")
    assert [replies.receive(5), replies.receive(0.001)] == [1, 2]
    late = Background(lambda: time.sleep(0.05) or server.sendall(b"\r\n4\r\n"))
    assert replies.receive(0.001) == [3, b"4"]
    late.outcome()
    assert replies.receive(0.001) is NOTHING
    server.sendall(b"-ERR no\r\n")
    with pytest.raises(redis.ResponseError):
        replies.receive(5)
    server.close()
    with pytest.raises(redis.ConnectionError):
        replies.receive(5)


def test_replies_of_every_kind_in_one_go(ends: tuple[Connection, socket.socket]) -> None:
    """What has come together is taken apart."""
    replies, server = ends
    server.sendall(b"".join(sent for sent, _ in MIXED))
    assert [replies.read() for _ in MIXED] == [expected for _, expected in MIXED]
    assert not replies._buffer


def test_a_reply_that_comes_in_pieces(
    ends: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cut, also after many others."""
    replies, server = ends
    monkeypatch.setattr("django_redis_lock.transport.clients._RECEIVED", 7001)
    long = b"x" * 100_000
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
    server.sendall(b"*2\r\n$100000\r\n" + long + b"\r\n:1\r\n" + b":2\r\n" * 5000)
    assert replies.read() == [long, 1]
    assert {replies.read() for _ in range(5000)} == {2}
    assert not replies._buffer


@pytest.mark.parametrize(("sent", "expected"), MIXED, ids=lambda item: repr(item)[:20])
def test_a_reply_that_has_not_come_whole(
    sent: bytes, expected: Any, ends: tuple[Connection, socket.socket]
) -> None:
    """It is read once it has, from a socket that does not block."""
    replies, server = ends
    replies.origin._sock.setblocking(False)
    for number in range(len(sent)):
        assert replies.read_arrived() is NOTHING
        server.sendall(sent[number : number + 1])
    assert replies.read_arrived() == expected


def test_errors_are_those_of_redis_py(ends: tuple[Connection, socket.socket]) -> None:
    replies, server = ends
    server.sendall(b"-NOSCRIPT No matching script.\r\n-READONLY You can't\r\n-ODD \xff\r\n")
    assert type(replies.read()) is redis.exceptions.NoScriptError
    assert type(replies.read()) is redis.exceptions.ReadOnlyError
    assert type(replies.read()) is redis.ResponseError
    server.sendall(b"-ERR max number of clients reached\r\n")
    with pytest.raises(redis.ConnectionError):
        replies.read()


def test_what_ends_a_connection(ends: tuple[Connection, socket.socket]) -> None:
    """No reply in time, another protocol, and the end of the stream in the midst of a reply."""
    replies, server = ends
    replies.limit(0)
    with pytest.raises(TimeoutError):
        replies.read()
    server.sendall(b"$4\r\nabc")
    with pytest.raises(TimeoutError):
        replies.read()
    server.sendall(b"d\r\n>2\r\n")
    assert replies.read() == b"abcd"
    with pytest.raises(redis.InvalidResponse):
        replies.read()
    server.shutdown(socket.SHUT_WR)
    replies._buffer = b"$10\r\nabc"
    with pytest.raises(redis.ConnectionError, match="closed"):
        replies.read()
