"""``manage.py locks`` about semaphores and readers: who shares what, and limits that are set."""

from __future__ import annotations

import json
import os
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.management.changing import system_user
from example_project.embedded import EmbeddedServer
from tests.tools import let_go, permits, queue
from tests.tools.console import Done, command, held, read

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
DUMMY = "django_redis_lock.backends.dummy.DummyLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"


@pytest.mark.parametrize("path", [LOCMEM, DUMMY])
def test_a_backend_that_does_not_see_other_processes_says_so(
    settings: Any, name: str, path: str
) -> None:
    settings.LOCKS = {"default": {"BACKEND": path}}
    told = (
        f"LOCKS['default'] uses {path.rpartition('.')[2]}, which neither shows nor locks out other"
    )
    for words in ("list", "show {}", "release {}", "run {} -- true"):
        assert command(*words.format(name).split()).err.startswith(told)
    for words in (["3"], ["--clear"]):
        done = command("limit", name, *words)
        assert (done.code, "would have no effect on other processes" in done.err) == (2, True)
    assert locks["default"].limits() == []


# list and show


def test_list_has_a_line_for_each_who_shares_a_lock() -> None:
    taken = permits("render", 2)
    held("alone")
    for number in (1, 2):
        assert lock("read", timeout=60, shared=True).acquire(blocking=False)
        assert f"shared      {number} holder" in command("show", "read").out
    assert "shared" not in command("show", "read").out.split("HOLDER")[1]
    taken += permits("render", 1)
    done = command("list", "--sort", "held")
    names = [row[:8].rstrip() for row in done.lines[1:]]
    assert names == ["render", *["  render"] * 2, "alone", "read", "  read"]  # together
    end = done.lines[0].index("SHARED") + len("SHARED")
    shared = [row[end - 9 : end].strip() for row in done.lines[1:]]
    assert shared == ["3 of 5", "", "", "-", "2 holders", ""]
    assert done.err == "3 locks, 6 holders\n"
    rows = read(command("list", "--sort", "held", "--format", "json"), "locks")
    names = [row["name"] for row in rows]  # each sorted by itself
    assert names == ["render", "render", "alone", "read", "read", "render"]
    rows = [row for row in rows if row["name"] == "render"]
    assert {row["fence"] for row in rows} == {permit.fence for permit in taken}
    assert len({row["token_id"] for row in rows}) == 3
    for row in rows:
        assert (row["shared"], row["limit"], row["holders"]) == (True, 5, 3)
        assert row["pid"] == os.getpid()
    (alone,) = read(command("list", "alone", "--format", "json"), "locks")
    assert (alone["shared"], alone["limit"], alone["holders"]) == (False, None, 1)
    for what in ("list", "show"):
        assert "shared" not in command(what, "alone").out.lower()


def test_list_tells_of_limits_that_no_holder_shows(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks["default"].set_limit("idle", 3)
    locks["default"].set_limit("render", 0, by="ada")
    waiting = queue(semaphore("render", 2, timeout=60))
    done = command("list")
    paused, idle, none = done.err.splitlines()
    assert paused.startswith("'render': paused, limit 0 (set by ada at 20")
    assert paused.endswith(" UTC), 1 waiting")
    assert idle.startswith("'idle': no permits held, limit 3 (set by - at 20")
    assert (done.code, done.out, none) == (0, "", "No locks are held.")
    permits("used", 2)
    locks["default"].set_limit("used", 0)
    done = command("list")
    assert ("2 held, paused" in done.lines[1], len(done.lines)) == (True, 3)
    assert re.search(r"'used': paused, limit 0 \(set by - at .* UTC\), 2 held, 0 waiting", done.err)
    told = [paused, "No held lock matches 'rend*'."]
    assert command("list", "rend*").err.splitlines() == told
    answer = json.loads(command("list", "--format", "json").out)
    assert [item["name"] for item in answer["locks"]] == ["used", "used"]
    (render, used, idle) = answer["limits"]
    assert render.pop("at").startswith("20")
    of_render = {"name": "render", "using": "default", "limit": 0, "by": "ada"}
    assert render == {**of_render, "held": 0, "waiters": 1, "parked": 0}
    assert (used["name"], used["limit"], used["held"]) == ("used", 0, 2)
    assert (idle["name"], idle["limit"], idle["waiters"]) == ("idle", 3, 0)
    assert command("list", "--limit", "1").err.count("limit") == 1
    settings.LOCKS = {**settings.LOCKS, "memory": {"BACKEND": LOCMEM}}
    assert "'render' on 'default': paused," in command("list").err
    refuse = MagicMock(side_effect=LockUnavailable("LOCKS['default'] refused: no permission"))
    monkeypatch.setattr("django_redis_lock.operators.queues_of", refuse)
    done = command("list", "--using", "default")
    assert (done.code, len(done.lines), "no permission" in done.err) == (2, 3, True)
    monkeypatch.undo()
    let_go("render", waiting)


def test_show_tells_holders_waiters_by_mode_and_the_limit() -> None:
    permits("render", 1, limit=2)
    assert "shared      1 of 2" in command("show", "render").out
    permits("render", 1, limit=2)
    locks["default"].set_limit("render", 1, by="ada")
    kinds = semaphore("render", 2), lock("render"), lock("render", shared=True)
    waiting = queue(*kinds)
    done = command("show", "render")
    assert done.code == 0
    assert "limit       1 (set by ada at 20" in done.out
    assert "shared      2 of 1" in done.out
    assert "waiters     3" in done.out
    assert "METADATA" not in done.out
    rows = [line for line in done.lines if line.startswith(("1  ", "2  ", "3  "))]
    assert [row.split("  ")[-2].strip() for row in rows] == ["one of 2", "-", "shared"]
    (known,) = read(command("show", "render", "--format", "json"), "locks")
    tokens = {holder["token_id"] for holder in known["holders"]}
    assert len(tokens) == 2
    assert all(token in done.out for token in tokens)
    assert [holder["life"] for holder in known["holders"]] == ["alive"] * 2
    assert known["holder"]["token_id"] == known["holders"][0]["token_id"]
    assert [item["shared"] for item in known["waiting"]] == [True, False, True]
    assert [item["limit"] for item in known["waiting"]] == [2, None, None]
    assert (known["limit"]["limit"], known["limit"]["by"]) == (1, "ada")
    let_go("render", waiting)
    for page in ("1", "2"):
        assert semaphore("pages", 3, timeout=60, metadata={"page": page}).acquire()
    rows = command("show", "pages").lines[1:]
    assert [row.split("  ")[-1] for row in rows if "page" in row] == ["page = 1", "page = 2"]


@pytest.mark.parametrize(("shared", "way"), [(False, "exclusively"), (True, "as a reader")])
def test_no_limit_pauses_another_lock_than_a_semaphore(name: str, shared: bool, way: str) -> None:
    """The next one could take it, so that it is paused would be wrong."""
    with lock(name, shared=shared):
        done = command("limit", name, "0")
        assert f"holds '{name}' {way}. Limits apply to semaphores only." in done.err
        assert "paused" not in command("list").err
        assert ", without effect on its holder" in command("show", name).out
        assert command("limit", name, "--clear").err == ""
        command("limit", name, "0")
    assert way not in command("limit", name, "0").err
    assert "  Not held; semaphores of this name are paused." in command("show", name).lines


# release


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_release_of_a_name_with_several_holders_needs_a_token_id(more: list[str]) -> None:
    taken = permits("render", 2, limit=2)
    (waiting,) = queue(semaphore("render", 2, timeout=60))
    (waiter,) = locks["default"].waiting("render")
    done = command("release", "render", "--noinput", *more)
    assert done.code == 2
    assert "Lock 'render' has 2 holders: pass the --token-id of the one to release." in done.err
    refused = command("release", "render", "--noinput", *more, "--format", "json")
    shown = json.loads(refused.out)["locks"]
    assert [one["fence"] for one in shown] == [permit.fence for permit in taken]
    assert all(one["token_id"] in done.out for one in shown)
    assert all(permit.owned() for permit in taken)
    done = command("release", "render", "--token-id", shown[0]["token_id"], "--noinput")
    heir = f"{waiter.host}:{waiter.pid} ({waiter.thread})"
    assert (done.code, done.lines[-1]) == (0, f"render: released, handed off to {heir}")
    assert [permit.owned() for permit in taken] == [False, True]
    (event,) = read(command("history", "render", "--format", "json"), "events")
    assert (event["event"], event["token_id"]) == ("force_released", shown[0]["token_id"])
    assert (event["fence"], event["by"]) == (shown[0]["fence"], system_user())
    assert waiting.outcome()
    taken[1].release()
    assert command("release", "render", "--noinput").lines[-1] == "render: released"


def test_release_by_pattern_releases_each_hold_that_was_shown() -> None:
    taken, _alone = permits("render", 3), held("alone")
    kept = command("release", "--all", "--only-dead").err
    assert kept.startswith(
        "Skipped 4 holds of 2 locks, each for this reason: its process is running."
    )
    done = command("release", "--pattern", "rend*", "--dry-run")
    assert done.err == "Dry run: 3 holds of 1 lock would be released.\n"
    done = command("release", "--pattern", "rend*", "--noinput")
    assert (done.code, done.lines[-3:]) == (0, ["render: released"] * 3)
    assert not any(permit.owned() for permit in taken)


# limit


def test_limits_are_set_listed_and_cleared(caplog: pytest.LogCaptureFixture) -> None:
    assert command("limit") == Done(0, "", "No limits are set.\n")
    permits("render", 2)
    done = command("limit", "render", "6")
    assert done == Done(0, "render: limit set to 6 (was: not set)\n", "")
    done = command("limit", "render", "3", "--by", " ada ")
    assert done.out == "render: limit set to 3 (was: 6)\n"
    assert "The limit of 'render' of LOCKS['default'] was set to 3 by ada" in caplog.messages
    done = command("limit", "a\u202eb*", "0")
    literal = "'a\\u202eb*' is taken literally: a limit applies to one name, not to a pattern."
    assert f"{literal} For a pattern, use: locks list 'a\\u202eb*'" in done.err
    done = command("limit")
    assert done.lines[0].split() == ["NAME", "LIMIT", "HELD", "BY", "AT", "(UTC)"]
    assert done.lines[1].split()[:4] == ["a\\u202eb*", "0", "0", system_user()]
    assert done.lines[2].split()[:4] == ["render", "3", "2", "ada"]
    (limit,) = read(command("limit", "render", "--format", "json"), "limits")
    assert limit.pop("at").startswith("20")
    assert limit == {"name": "render", "using": "default", "limit": 3, "held": 2, "by": "ada"}
    assert read(command("list", "render", "--format", "json"), "locks")[0]["limit"] == 3
    done = command("limit", "render", "--clear")
    assert done == Done(0, "render: limit cleared (was: 3)\n", "")
    done = command("limit", "render", "--clear")
    assert (done.code, done.out, "No limit was set for 'render'." in done.err) == (3, "", True)
    assert read(command("limit", "render", "--clear", "--format", "json"), "limits") == []
    assert command("limit", "render").code == 3
    assert read(command("limit", "render", "4", "--format", "json"), "limits")[0]["limit"] == 4


def test_a_limit_needs_an_alias_that_has_semaphores(settings: Any, server: EmbeddedServer) -> None:
    getset = {"BACKEND": GETSET, "LOCATION": server.url(), "KEY_PREFIX": "other"}
    settings.LOCKS = {**settings.LOCKS, "getset": getset}
    for words, code, told in (
        (["1"], 2, "choose one with --using"),
        (["1", "--using", "getset"], 1, "can't use shared"),
        (["1", "--using", "default"], 0, ""),
    ):
        done = command("limit", "render", *words)
        assert (done.code, told in done.err) == (code, True)
    assert command("limit").lines[1].split()[:2] == ["render", "default"]
