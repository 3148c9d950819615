"""The tables of ``manage.py locks``: on terminals of any width, in pipes, and drawn again."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management.color import no_style

from django_redis_lock import lock, locks
from django_redis_lock.management.console import facts
from django_redis_lock.management.console.table import Column, lines, shorten, text_width
from django_redis_lock.protocol.records import read_holder, write_record
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, state_of
from tests.tools.console import ESCAPES, Screen, arguments, environment, program

USING = ("--using", "default")


def held(name: str) -> Any:
    """Return a handle that holds a lock."""
    handle = lock(name, 600)
    assert handle.acquire(blocking=False)
    return handle


@pytest.fixture
def many(server: EmbeddedServer) -> list[str]:
    """Locks with names of all lengths and widths."""
    names = ["short", "a name that goes on and on " * 8, "鎖" * 60, "ключ 🔒 " * 12]
    for name in names:
        held(name)
    return names


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_fits_the_terminal(many: list[str], columns: int) -> None:
    """No line is longer than the terminal is wide, long names are cut, and short ones are whole."""
    with Screen("list", *USING, columns=columns) as screen:
        assert screen.end() == 0
        rows = screen.plain.splitlines()
    assert len(rows) == 1 + len(many)
    if columns >= 80:
        assert [row for row in rows if text_width(row) > columns] == []
    cut = [row for row in rows if "…" in row]
    assert len(cut) == {40: 4, 80: 3, 200: 1}[columns]
    assert any(row.startswith("short ") for row in rows)
    assert "WAITERS" in rows[0]
    assert ("FENCE" in rows[0]) is (columns == 200)
    starts = {text_width(row[: row.index("10m00s")]) for row in rows[1:] if "10m00s" in row}
    starts |= {text_width(row[: row.index("9m5")]) for row in rows[1:] if "9m5" in row}
    assert len(starts) <= 2  # the column stands in one line, at either width of its cell


def test_terminal_that_is_wide_enough_shows_all(server: EmbeddedServer) -> None:
    """Short names leave room for every column at 80 columns."""
    handle = held("a")
    with Screen("list", *USING, columns=80) as screen:
        assert screen.end() == 0
        assert str(handle.fence) in screen.plain
        assert "…" not in screen.plain


def test_pipe_is_not_cut_and_not_coloured(many: list[str]) -> None:
    """In a pipe every name is whole, whatever COLUMNS says, and there is no escape sequence."""
    done = program("list", *USING, COLUMNS="80")
    assert done.code == 0
    for name in many:
        assert name in done.out
    assert not ESCAPES.search(done.out)


@pytest.mark.parametrize(
    ("words", "variables", "coloured"),
    [
        (["list"], {}, True),
        (["list", "--no-color"], {}, False),
        (["--no-color", "list"], {}, False),
        (["list"], {"NO_COLOR": "1"}, False),
        (["list", "--format", "json"], {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    server: EmbeddedServer, words: list[str], variables: dict[str, str], coloured: bool
) -> None:
    """A terminal has colours unless it, or its user, wants none."""
    held("a")
    with Screen(*words, *USING, **variables) as screen:
        assert screen.end() == 0
        assert bool(re.search(r"\x1b\[[0-9;]+m", screen.seen)) is coloured


def test_force_color_colours_a_pipe(server: EmbeddedServer) -> None:
    """``--force-color`` is for pagers that show colours."""
    held("a")
    assert "\x1b[" in program("list", "--force-color", *USING).out


def test_watch_draws_again_until_interrupted(server: EmbeddedServer) -> None:
    """Locks come and go on the screen; Ctrl-C ends it with 130, and leaves the last picture."""
    first = held("first")
    with Screen("list", "--watch", "0.1", *USING) as screen:
        screen.see("first")
        held("second")
        screen.see("second")
        locks["default"].force_release("first")
        assert not first.owned()
        screen.see("1 held")
        frame = screen.see("Ctrl-C ends")
        assert "\x1b[2J" not in screen.seen  # it is not wiped, so it does not flicker
        assert "\x1b[H" in frame
        screen.interrupt()
        assert screen.end() == 130
        assert "Traceback" not in screen.plain
        assert screen.seen.endswith("\n")


def test_watch_fits_the_screen(server: EmbeddedServer) -> None:
    """What has no room is counted, and no frame scrolls."""
    for number in range(40):
        held(f"product:{number}")
    with Screen("list", "--watch", "0.1", *USING, rows=20) as screen:
        screen.see("more")
        screen.see("more")
        screen.interrupt()
        assert screen.end() == 130
        frames = screen.seen.split("\x1b[H")[1:]
        assert "40 held" in ESCAPES.sub("", frames[0])
        assert {frame.count("\n") for frame in frames[:-1]} == {19}  # and the cursor's line
        shown = frames[0].count("product:")
        assert f"... and {40 - shown} more" in ESCAPES.sub("", frames[0])
        assert shown > 10


def test_watch_outlives_the_server(own_server: EmbeddedServer, tmp_path: Any) -> None:
    """What was seen last stays, grey, under the time of that look, while a server is silent.

    How many are held is not known meanwhile, and what no server tells any more is none.
    """
    module = tmp_path / "watched_settings.py"
    module.write_text(
        "from tests.settings import *\n"
        f"LOCKS = {{'default': {{'LOCATION': '{own_server.url()}'}}}}\n"
    )
    redis.Redis.from_url(own_server.url()).set("lock:seen", "by-a-stranger", px=600_000)
    redis.Redis.from_url(own_server.url()).zadd("lock-index", {"seen": 9e15})
    words = ("list", "--watch", "0.1", "--pythonpath", str(tmp_path))
    with Screen(*words, "--settings", "watched_settings") as screen:
        screen.see("1 held")
        own_server.kill()
        screen.see("can't be asked")
        frame = screen.see("Ctrl-C ends") + screen.see("seen")
        assert "not known  every" in frame
        assert re.search(r"Last answer at \d\d:\d\d:\d\d: 1 held, greyed below", frame)
        assert "\x1b[2mseen" in frame
        own_server.restart()
        screen.see("0 held  every")
        assert "Last answer" not in screen.see("0 held  every")
        screen.interrupt()
        assert screen.end() == 130


def test_watch_in_a_pipe_has_no_escape_sequences(server: EmbeddedServer) -> None:
    """Frames in a pipe follow each other as plain text."""
    held("a")
    with subprocess.Popen(
        arguments("list", "--watch", "0.1", *USING),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        read = list(itertools.islice(process.stdout, 12))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 130
    assert sum(line.startswith("a ") for line in read) >= 2
    assert not ESCAPES.search("".join(read))


def test_question_on_a_terminal(server: EmbeddedServer) -> None:
    """Ctrl-D at the question declines, Ctrl-C interrupts; a yes releases."""
    handle = held("a")
    for key, ends in (("\x04", 1), ("\x03", 130), ("n\n", 1), ("y\n", 0)):
        with Screen("release", "a", "--reason", "stuck", *USING) as screen:
            screen.see("[y/N]")
            handle.ensure_held()
            # Python misses a signal that comes just before it asks the system to read.
            eventually(lambda screen=screen: state_of(screen.process.pid) == "S")
            screen.interrupt() if key == "\x03" else screen.type(key)
            assert screen.end() == ends, screen.plain
            assert "Traceback" not in screen.plain
            assert ("nothing was released" in screen.plain) is bool(ends)
    assert not handle.owned()


def test_reason_is_asked_for_on_a_terminal(server: EmbeddedServer, tmp_path: Path) -> None:
    """Nobody has to know the option; an empty answer is none, unless the alias needs one."""
    for typed, kept in (("it hangs\n", "it hangs"), ("\n", "")):
        held("a")
        with Screen("release", "a", *USING) as screen:
            screen.see("Reason for the audit:")
            screen.type(typed)
            screen.see("Release 1 lock?")
            screen.type("y\n")
            assert screen.end() == 0, screen.plain
        assert locks["default"].history("a", 1)[0].reason == kept
    (tmp_path / "strict_settings.py").write_text(
        "from tests.settings import *\nLOCKS['default']['OPERATORS'] = {'REASON_REQUIRED': True}\n"
    )
    strict = (*USING, "--settings", "strict_settings", "--pythonpath", str(tmp_path))
    handle = held("a")
    for typed, ends in (("\n", "Give a --reason"), ("x" * 501 + "\n", "at most 500")):
        with Screen("release", "a", *strict, columns=600) as screen:
            screen.see("Reason for the audit:")
            screen.type(typed)
            screen.see(ends)
            assert screen.end() == 2
    for words in (["--noinput"], ["--dry-run"]):
        with Screen("release", "a", *words, *USING) as screen:
            assert screen.end() == 0
            assert "Reason" not in screen.plain
        assert handle.owned() is (words == ["--dry-run"])
        handle = held("a") if not handle.owned() else handle
    done = program("release", "a", *USING, answer="y\n")
    assert (done.code, "Reason" in done.err) == (0, False)


# The table by itself.


def table(width: int | None, *rows: tuple[str, str, int]) -> list[str]:
    """Draw a table of two elastic columns, a number, and one that can be spared."""
    columns = [
        Column("A", lambda row: row[0], elastic=True),
        Column("B", lambda row: row[1], elastic=True),
        Column("N", lambda row: str(row[2]), right=True),
        Column("SPARE", lambda row: "x" * 16, spare=True),
    ]
    return "\n".join(lines(columns, rows, width=width, style=no_style(), page=2)).splitlines()


@pytest.mark.parametrize("width", range(34, 120, 7))
def test_any_width_is_used_and_kept(width: int) -> None:
    """Whatever the width, lines keep it, and numbers stand below each other."""
    drawn = table(width, ("a" * 50, "b" * 30, 7), ("a", "b" * 90, 1234), ("ab", "c", 5))
    assert [line for line in drawn if text_width(line) > width] == []
    ends = {
        line.index(number) + len(number)
        for line, number in zip(drawn[1:], ("7", "1234", "5"), strict=True)
    }
    assert len(ends) == 1


def test_cell_that_does_not_fit_says_it_briefly() -> None:
    """A cell with a shorter form takes that, and is cut only where that does not fit either."""
    column: Column[str] = Column("A", str, elastic=True, brief=lambda row: row[:15])
    for width, seen in ((20, "a" * 20), (19, "a" * 15), (14, "a" * 13 + "…")):
        drawn = list(lines([column], ["a" * 20], width=width, style=no_style()))
        assert drawn[1] == seen
    record = write_record(auto_renew=False, task_id="0319efa8-9d", task_name="shop.tasks.work")
    value = f"t 1 {record}".encode()
    holder = read_holder(value, name="n", using="u", ttl_ms=1, waiters=0, now_ms=1)
    assert facts.brief(holder) == f"work[0319efa8] on {holder.host}:{holder.pid}"
    assert facts.who(holder) == f"task shop.tasks.work[0319efa8-9d] on {holder.host}:{holder.pid}"


def test_short_cells_leave_their_room_to_long_ones() -> None:
    """A column that wants little gets it, and the rest goes to who wants more."""
    heading, row = table(40, ("short", "b" * 100, 1))
    assert row.startswith("short  bbb")
    assert text_width(row) == 40
    assert "SPARE" not in heading


def test_no_width_cuts_nothing() -> None:
    """In a pipe all is shown, later pages that are wider included."""
    drawn = table(None, ("a", "b", 1), ("a", "b", 2), ("a" * 300, "b", 3))
    assert "a" * 300 in drawn[3]
    assert table(None) == []


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("鎖", 2), ("é", 1), ("e\u0301", 1), ("🔒", 2), ("", 0)]
)
def test_width_of_a_text_is_that_on_the_screen(text: str, width: int) -> None:
    """Wide characters take two columns, combining ones none."""
    assert text_width(text) == width


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("鎖鎖鎖", 5, "鎖鎖…"), ("鎖鎖鎖", 4, "鎖…")],
)
def test_text_is_cut_to_its_room(text: str, width: int, cut: str) -> None:
    """What is cut says so, and fits."""
    assert shorten(text, width) == cut
    assert text_width(cut) <= width
