"""Tries broken copies of the protocol, which ``mutants.toml`` lists: each has to be found."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from tests.simulation.promises import Promise

ROOT = Path(__file__).parents[2]
PACKAGE = "django_redis_lock"
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    about: str
    layout: str
    path: str
    """The file, from the package's folder."""
    old: str
    new: str
    not_seen_by: str = ""
    """What can't find it, by its nature."""

    def apply(self, directory: Path) -> None:
        """Change a copy of the project. Raises ``ValueError`` if the place is not there once."""
        path = directory / PACKAGE / self.path
        source = path.read_text()
        if source.count(self.old) != 1:
            found = source.count(self.old)
            raise ValueError(f"{self.about}: {self.old!r} is {found} times in {self.path}")
        path.write_text(source.replace(self.old, self.new))

    @contextlib.contextmanager
    def copied(self, *parts: str) -> Iterator[Path]:
        """Yield a directory that has the broken package and other parts of the project."""
        ignored = shutil.ignore_patterns("__pycache__", "locale", "static", "templates")
        with tempfile.TemporaryDirectory(prefix="broken-") as name:
            for part in (PACKAGE, *parts):
                shutil.copytree(ROOT / part, Path(name) / part, ignore=ignored)
            self.apply(Path(name))
            yield Path(name)


def read(file: Path = LIST) -> list[Mutant]:
    return [
        Mutant(about, layout, path, *change)
        for layout, files in tomllib.loads(file.read_text()).items()
        for path, changes in files.items()
        for about, change in changes.items()
    ]


def main(schedules: int, jobs: int) -> int:
    """Try all broken copies with so many schedules each at most; return the exit code."""
    chosen = read()
    missed = 0
    # The last two are checked by the actors.
    promises = [promise.__name__ for promise in Promise.__subclasses__()]
    unbroken = {*promises, "HonestLosses", "PromptInterruptions"}
    limits = ("--schedules", str(schedules), "--seed", "1", "--jobs", "1", "--first")
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda mutant: _run(mutant, (mutant.layout, *limits), PIPE), chosen)
        for mutant, done in zip(chosen, found, strict=True):
            broken = re.findall(rf"^{mutant.layout}, \w+ \S+: (\w+)", done.stdout, re.MULTILINE)
            played = re.findall(rf"^{mutant.layout} +([\d,]+) sch", done.stdout, re.MULTILINE)
            if not (broken or played):
                raise RuntimeError(f"{mutant.about}: {done.stdout}")
            missed += not broken
            unbroken.difference_update(broken)
            outcome = broken[0] if broken else "NOT FOUND"
            print(
                f"{mutant.layout:14} {outcome:20} {(played or ['kept'])[0]:>7}  {mutant.about}",
                flush=True,
            )
    print(f"{len(chosen) - missed} of {len(chosen)} broken copies were found")
    if unbroken:  # no copy shows that its check can fail
        print(f"None of them broke {', '.join(sorted(unbroken))}")
    return int(missed > 0 or bool(unbroken))


def run(about: str, arguments: Sequence[str]) -> int:
    """Do what the arguments say with a broken copy whose name begins so; return the exit code."""
    mutant = next(mutant for mutant in read() if mutant.about.startswith(about))
    return _run(mutant, arguments).returncode


def _run(
    mutant: Mutant, arguments: Sequence[str], output: int | None = None
) -> subprocess.CompletedProcess[str]:
    with mutant.copied("tests/simulation") as directory:
        (directory / "tests" / "__init__.py").touch()
        return subprocess.run(
            [sys.executable, "-P", "-m", "tests.simulation", *arguments],
            env={**os.environ, "PYTHONPATH": str(directory)},
            stdout=output,
            text=True,
            check=False,
        )
