"""Writes ``tests/project/walk.md``, which shows what runs for a free lock: ``python -m
tests.tools.walk``. It runs ``lock("x")`` with the settings of README, and quotes what ran of each
function, in the order of the first calls. Functions of which little runs are left out."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import django_redis_lock
from example_project.embedded import EmbeddedServer

PACKAGE = Path(django_redis_lock.__file__).parent
PAGE = PACKAGE.parent / "tests/project/walk.md"
TEXT = """# The walk of `lock("x")`

`python -m tests.tools.walk` wrote this page, and a test compares it with a run. It shows what runs
for a free lock with the backend `redis`, if this process has acquired a lock before and had no
waiter in the last minute:

```python
with lock("x"):
    pass
```

Each function stands in the order of its first call, with the lines that ran, ten at most. Error
handling, branches not taken and functions of one to three lines are left out.

- `with` calls `acquire()`, which is `self.backend.run(self._acquire(self._until(...)))`.
- `_acquire` is a generator of steps. `run` carries out each step and sends the result back. `ask`
  yields a call, which is a step.
- `carry_out` in `protocol/drivers.py` passes a call on to `ServersLockBackend.call`,
  `ScriptedServer.call` and `BlockingClient.call`.
- `release` exists twice. In `primitives/` it acts on the handle, in `protocol/locking.py` it asks
  the server.

"""
MOST, LEAST = 10, 4
"""Lines that are shown of a function, and that must run of one that is shown."""
PROGRAM = """
import json, sys
from benchmarks.contenders import Ours
from benchmarks.scenarios import let_renewal_sleep
Ours(sys.argv[1])
from django_redis_lock import lock
ran = {}

def trace(frame, event, arg):
    code = frame.f_code
    if "/django_redis_lock/" in code.co_filename and code.co_name[0] != "<":
        place = code.co_filename, code.co_firstlineno
        ran.setdefault(place, []).append(frame.f_lineno)
        return trace

with lock("first"):
    pass
let_renewal_sleep()
sys.settrace(trace)
with lock("x"):
    pass
sys.settrace(None)
print(json.dumps([(*place, lines) for place, lines in ran.items()]))
"""


def walk(url: str) -> str:
    """Return the page, with what ran of the functions as one block of Python."""
    answer = subprocess.check_output([sys.executable, "-c", PROGRAM, url], text=True)
    blocks = []
    for file, first, lines in json.loads(answer):
        path, source = Path(file), Path(file).read_text()
        function, names = next(_functions(ast.parse(source), first))
        quoted = [*_quoted(function.body, source.splitlines(), {*lines})]
        if len(quoted) >= LEAST:
            indent = function.body[0].col_offset
            shown = [line[indent:] for line in quoted]
            if len(shown) > MOST:
                shown = [*shown[: MOST - 1], "..."]
            head = f"# {path.relative_to(PACKAGE)}: {'.'.join(names)}"
            blocks.append("\n".join([head, *shown]))
    return TEXT + "```py\n" + "\n\n".join(blocks) + "\n```\n"


def _functions(
    tree: ast.AST, first: int, names: tuple[str, ...] = ()
) -> Iterator[tuple[ast.FunctionDef, list[str]]]:
    """Yield the function that begins on a line, with its decorators, and its qualified name."""
    for node in ast.iter_child_nodes(tree):
        inner = (*names, node.name) if isinstance(node, ast.ClassDef | ast.FunctionDef) else names
        if isinstance(node, ast.FunctionDef) and first in (
            node.lineno,
            *(item.lineno for item in node.decorator_list[:1]),
        ):
            yield node, [*inner]
        yield from _functions(node, first, inner)


def _quoted(body: list[ast.stmt], source: list[str], ran: set[int]) -> Iterator[str]:
    """Yield the lines of the statements that ran; of a compound one the head and what ran of it."""
    for statement in body:
        inside = getattr(statement, "body", None)
        end = inside[0].lineno - 1 if inside else statement.end_lineno or statement.lineno
        if ran.isdisjoint(range(statement.lineno, end + 1)):
            continue
        within = [*_quoted(inside or [], source, ran)]
        otherwise = [*_quoted(getattr(statement, "orelse", []), source, ran)]
        if inside and not (within or otherwise):  # an exception, which did not apply
            continue
        indent = " " * statement.col_offset
        head = source[statement.lineno - 1 : end]
        yield from (line for line in head if not line.lstrip().startswith("#"))
        yield from within or ([f"{indent}    ..."] if inside else [])
        if otherwise:
            yield f"{indent}else:"
            yield from otherwise
        if final := [*_quoted(getattr(statement, "finalbody", []), source, ran)]:
            yield f"{indent}finally:"
            yield from final


def main() -> None:
    with EmbeddedServer() as server:
        PAGE.write_text(walk(server.url()))


if __name__ == "__main__":
    main()
