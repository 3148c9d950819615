"""Finds words that are not used, and pages that are longer than their budget: ``make lint``.

A word counts as ``wc -w`` counts it: whatever blanks separate, code and tables included."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

WORDS = {
    "somebody|nobody|whoever": "holder, waiter, caller or operator; no caller",
    "those who": "callers that, or another name of theirs",
    r"(?<!can't\x20)tells?|told": "say, notify, show, send or set",
    "hears?|heard": "receive, see or seen",
    "goes before": "overrides",
    "without end": "no expiry, or no limit",
    "comes? again": "be retried, be redelivered or return",
    "comes? free": "be released or freed",
    "finds? no room": "get no permit, or name what is full",
    "so many": "the number, as in: up to `limit` holders",
    "a while": "for how long, with a unit",
    "had better": "should",
    "for ever": "without a limit, or never",
    "learns? of": "be notified of, or notice",
    "looks? after": "handle or check",
    "besides": "also, or nothing",
    "superfluous": "not needed",
    "strangers?|foreign programs?": "other program; for web clients: anybody",
    "hand-?overs?": "hand-off",
    "breaks? a lock": "force its release",
    "hubs?": "waiter registry",
    "slips?": "message header",
    "ballots?": "quorum call",
    "adrift": "may be held",
    "being_set": "pending update",
    "pass_on": "publish next",
    "made_up": "generated",
    "made_once": "cached property",
}
"""What is not written, in code, texts or pages, and what is written instead."""

IN_PAGES = {"(?<![`\"'])endless(?:ly)?(?![`\"'_])": "no expiry, or no limit"}
"""The same in pages alone. The command prints ``endless``, in a narrow column."""

BUDGETS = {
    "README": 1200,
    "CHANGELOG": 700,
    "CONTRIBUTING": 1400,
    "SECURITY": 460,
    "CODE_OF_CONDUCT": 130,
    "example_project/README": 250,
    "docs/index": 250,
    "docs/tutorial/first-lock": 1100,
    "docs/how-to/install-and-configure": 850,
    "docs/how-to/server-layouts": 800,
    "docs/how-to/secure-the-server": 400,
    "docs/how-to/plan-capacity": 500,
    "docs/how-to/deploy-and-stop": 500,
    "docs/how-to/guard-a-view": 1100,
    "docs/how-to/semaphores": 450,
    "docs/how-to/readers-and-writers": 400,
    "docs/how-to/lock-several": 350,
    "docs/how-to/transactions": 350,
    "docs/how-to/fence-a-model": 300,
    "docs/how-to/pass-a-lock": 300,
    "docs/how-to/async": 300,
    "docs/how-to/testing": 650,
    "docs/how-to/celery/run-one-at-a-time": 1000,
    "docs/how-to/celery/limit-concurrency": 900,
    "docs/how-to/celery/recipes-and-production": 1000,
    "docs/how-to/django-tasks": 280,
    "docs/how-to/run-a-command-once": 400,
    "docs/how-to/lead-a-beat": 350,
    "docs/how-to/runbook": 1000,
    "docs/how-to/use-the-command": 700,
    "docs/how-to/use-the-admin-page": 450,
    "docs/how-to/monitor": 800,
    "docs/how-to/migrate-to": 1000,
    "docs/how-to/upgrade": 450,
    "docs/how-to/remove-the-app": 200,
    "docs/reference/settings": 650,
    "docs/reference/locks": 1150,
    "docs/reference/celery": 1800,
    "docs/reference/views": 450,
    "docs/reference/command": 1400,
    "docs/reference/admin": 250,
    "docs/reference/backends": 250,
    "docs/reference/fencing": 100,
    "docs/reference/exceptions": 200,
    "docs/reference/signals": 200,
    "docs/reference/checks": 650,
    "docs/reference/metrics": 450,
    "docs/reference/testing": 150,
    "docs/reference/keys-and-constants": 1100,
    "docs/reference/versions": 600,
    "docs/explanation/guarantees": 600,
    "docs/explanation/failure-modes": 1700,
    "docs/explanation/layouts": 1500,
    "docs/explanation/how-it-works": 2000,
    "docs/explanation/how-tasks-are-guarded": 1500,
    "docs/explanation/choose-a-guard": 600,
    "docs/explanation/benchmarks": 1200,
    "docs/explanation/faq": 500,
    "docs/contributing/architecture": 1000,
    "docs/contributing/simulation": 500,
    "docs/contributing/model": 400,
}
"""How many words each page should have at most. One that has a tenth more fails."""

MOST = 42_000
"""How many words all pages may have together."""


def main(root: Path = ROOT) -> int:
    """Print what is wrong below a folder; return the exit code."""
    package = root / "django_redis_lock"
    code = [path for ending in ("py", "lua", "html") for path in package.rglob(f"*.{ending}")]
    pages = {path: path.read_text() for path in sorted(_pages(root))}
    wrong = [*lengths({str(path.relative_to(root)): text for path, text in pages.items()})]
    for path, text in [*pages.items(), *((path, path.read_text()) for path in sorted(code))]:
        known = WORDS | IN_PAGES if path in pages else WORDS
        wrong += [f"{path.relative_to(root)}:{found}" for found in words(text, known)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return len(wrong) > 0


def _pages(root: Path) -> Iterator[Path]:
    """Yield what users and contributors read."""
    yield from root.glob("*.md")
    yield from root.glob("example_project/*.md")
    yield from (path for path in root.glob("docs/**/*.md") if "_build" not in path.parts)


def lengths(pages: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the lengths of pages, whose texts are given by their paths."""
    counts = {page: len(text.split()) for page, text in pages.items()}
    budgets = {f"{page}.md": budget for page, budget in BUDGETS.items()}
    for page, count in counts.items():
        if page not in budgets:
            yield f"{page}: has no budget, see tests/project/words.py"
        elif count * 10 > budgets[page] * 11:
            yield f"{page}: has {count} words, and a budget of {budgets[page]}"
    yield from (f"{page}: has a budget, but is missing" for page in budgets if page not in counts)
    if (total := sum(counts.values())) > MOST:
        yield f"All pages have {total} words, which is more than {MOST}."


def words(text: str, known: Mapping[str, str] = WORDS) -> Iterator[str]:
    """Yield the words of a text that are not used, each with its line and what is used instead.

    A blank in a word may be the end of a line. Words of a name count, as in ``WaiterHub``, but no
    attribute: a ``worker.hub`` is Celery's, and ``file.tell()`` Python's."""
    text = re.sub("(?<=[a-z])(?=[A-Z])", " ", text)
    for word, instead in known.items():
        pattern = word.replace(" ", r"\s+(?:(?:#:?|--|>)\s+)?")
        for found in re.finditer(rf"(?i)(?<![a-z.])(?:{pattern})(?![a-z])", text):
            number = text.count("\n", 0, found.start()) + 1
            yield f"{number}: {' '.join(found[0].split())!r}, write: {instead}"


if __name__ == "__main__":
    sys.exit(main())
