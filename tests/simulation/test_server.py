"""The simulation's server answers as a real one does."""

from __future__ import annotations

import random
from typing import Any

import redis

from example_project.embedded import EmbeddedServer
from tests.simulation.server import Server


def command(dice: random.Random) -> list[Any]:
    """Return a random command of those that the scripts use, on few keys and values."""
    key, member = dice.choice(("a", "b", "c")), dice.choice(("x", "y", "z"))
    reading = dice.choice(("GET", "LLEN", "ZCARD"))
    score, place = (
        dice.choice(("1", "2.5", "+inf", "1700000000123")),
        dice.choice((-2, -1, 0, 1, 5)),
    )
    return dice.choice(
        (
            ["GET", key],
            ["SET", key, member],
            ["SET", key, member, "GET"],
            ["SET", key, member, "PX", 100_000],
            ["SET", key, member, "KEEPTTL"],
            ["INCR", key],
            ["DEL", key, dice.choice(("a", "b"))],
            ["EXISTS", key, "b"],
            ["PEXPIRE", key, 200_000],
            ["PERSIST", key],
            ["RPUSH", key, member],
            ["LPOP", key],
            ["LLEN", key],
            ["LTRIM", key, place, place + 2],
            ["LRANGE", key, place, place + 2],
            ["HSET", key, member, score],
            ["HGET", key, member],
            ["HMGET", key, member, "y"],
            ["HLEN", key],
            ["HKEYS", key],
            ["HEXISTS", key, member],
            ["HDEL", key, member, "y"],
            ["HGETALL", key],
            ["PEXPIREAT", key, dice.choice((1, 4_000_000_000_000))],
            ["ZADD", key, score, member],
            ["ZADD", key, "NX", score, member],
            ["ZADD", key, "LT", "CH", score, member],
            ["ZADD", key, "CH", score, member, "1", "y"],
            ["ZREM", key, member, "y"],
            ["ZCARD", key],
            ["ZSCORE", key, member],
            ["ZRANGE", key, place, place + 2],
            ["ZRANGE", key, 0, -1, "WITHSCORES"],
            ["ZRANGE", key, -1, -1, "WITHSCORES"],
            ["ZCOUNT", key, "-inf", "(2.5"],
            ["ZRANGEBYSCORE", key, "-inf", "(2.5"],
            ["ZRANGEBYSCORE", key, "1", "+inf", "WITHSCORES", "LIMIT", 0, 2],
            ["XADD", key, f"{dice.randrange(1, 50)}-1", "event", member],
            ["XADD", key, "0-0", "event", member],
            ["XREVRANGE", key, "+", "-"],
            ["XREVRANGE", key, f"({dice.randrange(1, 50)}-1", "-", "COUNT", 2],
            ["EVAL", "return {redis.call(ARGV[1], KEYS[1]), 'one', 2.9}", 1, key, reading],
            ["EVAL", "return redis.pcall('INCR', KEYS[1]).err or 'fine'", 1, key],
            ["EVAL", "return type(redis.pcall(ARGV[1], KEYS[1]))", 1, key, reading],
            ["EVAL", "local t = redis.pcall('SET', KEYS[1], ARGV[1]) return t.ok", 1, key, member],
            ["EVAL", "return #redis.call('HRANDFIELD', KEYS[1], 2)", 1, key],
            ["EVAL", "return #redis.call('ZRANDMEMBER', KEYS[1], 2)", 1, key],
            ["EVAL", "return {tonumber('17'), false, 'after'}", 0],
            ["EVAL", "return redis.sha1hex(ARGV[1]) .. ARGV[2] + 1", 0, member, 7],
            ["EVAL", "return redis.call('ZADD', KEYS[1], math.huge, ARGV[1])", 1, key, member],
            ["EVAL", "return tostring(pcall(redis.call, 'INCR', KEYS[1]))", 1, key],
        )
    )  # fmt: skip


def test_random_commands_have_equal_replies() -> None:
    """On a real server and on ours, one after the other."""
    ours = Server(lambda: 1_700_000_000_000_000, lambda channel, message: 0)
    dice = random.Random(7)
    with EmbeddedServer() as server, redis.Redis(port=server.port, protocol=2) as client:
        connection = client.connection_pool.get_connection()
        for number in range(20_000):
            words = command(dice)
            connection.send_command(*words)
            try:
                theirs = connection.read_response(disable_decoding=True)
            except redis.ResponseError as error:
                theirs = error
            reply = ours.execute([str(word).encode() for word in words])
            assert alike(reply, theirs), (number, words, reply, theirs)
        connection.disconnect()


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two replies are equal; an error of a script has more text on a real server."""
    if isinstance(ours, Exception) and isinstance(theirs, Exception):
        return True
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return bool(ours == theirs)
