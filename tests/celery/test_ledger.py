"""What a worker's children write down of their locks, and what their parent reads of it."""

from __future__ import annotations

import json
import os
import textwrap

import pytest

from django_redis_lock.support.process import began_at, state_of
from tests.tools import Child

HEAD = """
import json, os, signal, time
from django_redis_lock.celery.ledger import open_ledger, this_page
from django_redis_lock.celery.places import TaskLock
from django_redis_lock.protocol.records import token_id

class Lock(TaskLock):
    in_use = True

ledger = open_ledger()

def forked(body):
    pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid

def enter(name, token):
    held = Lock(None, name)
    this_page().enter(held, "default", token)
    return held

def tell():
    say(json.dumps([[page, pid, ledger.read(page)] for page, pid, _ in ledger.children()]))
"""


def told(program: str) -> list[list[object]]:
    """Run a program with a ledger; return what it told of the pages, each time it did."""
    with Child(HEAD + textwrap.dedent(program)) as child:
        assert child.process.stdout is not None
        lines = [line for line in child.process.stdout if line.startswith("[")]
        assert child.end() == 0
    return [json.loads(line) for line in lines]


def test_parent_reads_what_a_dead_child_held() -> None:
    """What was released is crossed out, and what is nested stands beside it."""
    (pages,) = told(
        """
        def body():
            one, two, three = enter("one", "1"), enter("two", "2"), enter("three", "3")
            this_page().leave("2")
            four = enter("four", "4")
            os.kill(os.getpid(), signal.SIGKILL)
        forked(body)
        tell()
        """
    )
    ((_, _, (entries, complete)),) = pages  # type: ignore[misc]
    assert [name for _, name, _ in entries] == ["one", "three", "four"]
    assert complete


def test_page_of_the_dead_is_given_to_the_next_once_it_is_freed() -> None:
    """Until then it is kept, so what a child held is read however late."""
    first, second = told(
        """
        def named(name):
            def body():
                held = enter(name, "1")
                os.kill(os.getpid(), signal.SIGKILL)
            return body
        forked(named("one"))
        forked(named("two"))
        tell()
        ledger.free(0)
        forked(named("three"))
        tell()
        """
    )

    def names(pages: list[object]) -> list[object]:
        return [(page, entries[0][1]) for page, _, (entries, _) in pages]  # type: ignore[misc]

    assert names(first) == [(0, "one"), (1, "two")]
    assert names(second) == [(0, "three"), (1, "two")]


def test_child_whose_descriptors_were_closed_takes_no_page() -> None:
    """It could take that of another; so it goes without, and says so."""
    before, after = told(
        """
        def body():
            os.closerange(3, 256)
            os.open(os.devnull, os.O_RDWR)
            assert this_page() is None
        tell()
        forked(body)
        tell()
        """
    )
    assert before == after == []


def test_more_than_a_page_holds_is_marked() -> None:
    """Then the parent has to look itself."""
    (pages,) = told(
        """
        def body():
            held = [enter(f"{number}-" + 500 * "x", str(number)) for number in range(9)]
            os.kill(os.getpid(), signal.SIGKILL)
        forked(body)
        tell()
        """
    )
    ((_, _, (entries, complete)),) = pages  # type: ignore[misc]
    assert (entries, complete) == ([], False)


@pytest.mark.parametrize(("later", "expected"), [(0, True), (1, False)])
def test_later_process_of_the_same_number_is_another(later: int, expected: bool) -> None:
    """When it began tells them apart."""
    assert bool(state_of(os.getpid(), began_at(os.getpid()) + later)) is expected
