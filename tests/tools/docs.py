"""The pages of the documentation: their code blocks, their tables, the rules of ACL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools import ROOT

DOCS = ROOT / "docs"

TUTORIAL = DOCS / "tutorial" / "first-lock.md"

_BLOCK = re.compile(
    r"<!-- test\n(?P<hidden>.*?)-->"
    r"|(?:<!-- test: (?P<how>\w+) ?(?P<what>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    how: str
    what: str


def blocks(path: Path) -> Iterator[Block]:
    page = path.read_text()
    for match in _BLOCK.finditer(page):
        hidden = match["hidden"]
        group = "text" if hidden is None else "hidden"
        yield Block(
            language=match["language"] if hidden is None else "python",
            text=match[group],
            line=page.count("\n", 0, match.start(group)) + 1,
            how=match["how"] or "",
            what=match["what"] or "",
        )


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output below it."""
    return [(found[1], found[2]) for found in _COMMAND.finditer(text)]


def table(path: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without backticks."""
    section = path.read_text().split(f"# {heading}\n", 1)[1]
    rows = re.search(r"^\|.*?\n(?!\|)", section, re.MULTILINE | re.DOTALL)
    assert rows, f"no table below {heading!r} in {path.name}"
    lines = rows[0].strip().splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


ACL_PARTS = {
    "blpop": 'WAIT "blpop"',
    "poll": 'WAIT "poll"',
    "cluster": "Cluster, on each node",
    "quorum": "Redlock quorum, on each server",
    "worker": 'Celery workers that park tasks, and "locks unpark"',
}
"""The comments above what the page adds to its first rule."""


def acl_rule(*parts: str, prefix: str = "lock", user: str = "locker") -> list[str]:
    """Return a rule of the page and some additions, for another ``KEY_PREFIX`` as the page says."""
    text = (DOCS / "how-to/secure-the-server.md").read_text()
    (first,) = re.findall(rf"^ACL SETUSER {user} (on .*)$", text, re.MULTILINE)
    rule = first.split()
    for part in parts:
        title = re.escape(ACL_PARTS[part])
        (more,) = re.findall(rf"^# {title}\nACL SETUSER {user} (.*)$", text, re.MULTILINE)
        for word in more.split():
            if word == "resetchannels":
                rule = [each for each in rule if not each.startswith("&")]
            elif word.startswith("-"):
                rule.remove(f"+{word[1:]}")
            else:
                rule.append(word)
    return [re.sub("^([~&])lock", rf"\1{prefix}", word) for word in rule]
