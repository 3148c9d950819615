"""Finds words that docs/contributing/terms.md excludes in the code, its texts and the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TERMS = ROOT / "docs/contributing/terms.md"


def main() -> int:
    """Print each line with such a word. A ``hub`` of something is Celery's."""
    _, _, table = TERMS.read_text().partition("## Words not used")
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)[1:]
    words = [word for row in rows for word in row.split(", ")]
    found = re.compile(
        "|".join(rf"(?i:(?<![a-z.]){one}s?(?![a-z]))|{one.capitalize()}(?![a-z])" for one in words)
    )
    code = [
        path
        for ending in ("py", "lua", "html")
        for path in (ROOT / "django_redis_lock").rglob(f"*.{ending}")
    ]
    roots = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/[a-z]*/*.md"), *roots]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted({*code, *pages} - {TERMS})
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if found.search(line)
    ]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
