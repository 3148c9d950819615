"""The mutants of Lua scripts: what is changed, and that each is a script of its own."""

from __future__ import annotations

import pytest
import redis

from tests.mutants.known import survivors
from tests.mutants.lua import mutants, tokens
from tests.tools import ROOT

SCRIPTS = sorted((ROOT / "django_redis_lock" / "transport" / "scripts").glob("*.lua"))
SCRIPT = """
-- a == b
if held == -1 and not due then
  redis.call('SET', KEYS[2],
    value)
  place = place + 100
end
return 'x'
"""


def test_what_is_changed() -> None:
    """Operators, conditions, constants, arguments and statements, but no comment and no command."""
    assert [each.change for each in mutants("script", SCRIPT)] == [
        "held == -1 and not due → false",
        "held == -1 and not due → true",
        "== → ~=",
        "- → nothing",
        "1 → 2",
        "and → or",
        "not → nothing",
        "redis.call('SET', KEYS[2], value) → nothing",
        "KEYS[2], value → value, KEYS[2]",
        "2 → 3",
        "place = place + 100 → nothing",
        "+ → -",
        "100 → 1000",
        "return 'x' → nothing",
        "'x' → '?'",
    ]


def test_a_mutant_is_named_after_its_line() -> None:
    """The id stays the same when other lines change."""
    (one, other) = mutants("script", "x = 1\nx = 1")[1::2]
    assert (one.id, other.id) == ("script: x = 1 | 1 → 2", "script: x = 1 | 1 → 2 (2)")
    assert (one.source, other.source) == ("x = 2\nx = 1", "x = 1\nx = 2")


def test_what_is_not_lua_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown Lua"):
        tokens("a ? b")


def test_each_mutant_is_a_script(client: redis.Redis) -> None:
    """All of them compile, so that a test and not the compiler finds them; and no two are alike."""
    for path in SCRIPTS:
        source = path.read_text()
        found = mutants(path.stem, source)
        assert len({each.id for each in found}) == len(found)
        assert source not in {each.source for each in found}
        with client.pipeline(transaction=False) as pipeline:
            for each in found:
                pipeline.execute_command("SCRIPT LOAD", each.source)
            pipeline.execute()
    client.script_flush()


def test_listed_mutants_exist() -> None:
    """The page tells of scripts as they are."""
    ids = {each.id for path in SCRIPTS for each in mutants(path.stem, path.read_text())}
    assert survivors() <= ids
