"""Builds the sdist and the wheel from the last commit, twice, and compares them with git."""

from __future__ import annotations

import os
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.release.commands import ReleaseError, run, say, tool

PACKAGE = "django_redis_lock/"


@dataclass(frozen=True)
class Built:
    """The two files of a release, and the checkout that they were built from."""

    sdist: Path
    wheel: Path
    checkout: Path

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


def build(folder: Path, work: Path) -> Built:
    """Build into ``folder``; the same again elsewhere has to give the same bytes."""
    if run("git", "status", "--porcelain"):
        say("There are uncommitted changes. They are left out: the last commit is built.")
    built = _build(work / "one", folder)
    again = _build(work / "another", work / "dist")
    for first, second in ((built.sdist, again.sdist), (built.wheel, again.wheel)):
        if first.read_bytes() != second.read_bytes():
            raise ReleaseError(f"{first.name} differs from one build to the next")
    tool("twine", "check", "--strict", built.sdist, built.wheel)
    say(f"{built.sdist.name} and {built.wheel.name}: reproducible, and twine finds no mistake")
    return built


def _build(checkout: Path, folder: Path) -> Built:
    """Build in a new clone, with the time of the last commit as that of the build."""
    run("git", "clone", "--quiet", "--no-checkout", ".", checkout)
    head = run("git", "rev-parse", "HEAD").strip()
    run("git", "checkout", "--quiet", "--detach", head, cwd=checkout)
    time = run("git", "log", "-1", "--format=%ct").strip()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("django_redis_lock-*"):
        old.unlink()
    env = {**os.environ, "SOURCE_DATE_EPOCH": time}
    tool("build", "--no-isolation", "--outdir", folder, cwd=checkout, env=env)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel, checkout)


def compare_with_git(built: Built) -> None:
    """Every file of git is in the sdist, every one of the package in the wheel, and no other."""
    tracked = run("git", "ls-files", "-z", cwd=built.checkout).split("\0")[:-1]
    project = tomllib.loads((built.checkout / "pyproject.toml").read_text())
    left_out = tuple(project["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"])
    in_git = {name: (built.checkout / name).read_bytes() for name in tracked}
    source = {name: data for name, data in in_git.items() if not name.startswith(left_out)}
    package = {name: data for name, data in in_git.items() if name.startswith(PACKAGE)}
    compare(built.sdist.name, _files_of_sdist(built.sdist), source)
    compare(built.wheel.name, _files_of_wheel(built.wheel), package)
    say(f"sdist: the {len(source)} files of git; wheel: the {len(package)} of the package")


def _files_of_sdist(sdist: Path) -> dict[str, bytes]:
    """Return the files of an sdist, without the metadata that the build adds."""
    found = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None, f"{member.name} is no file"
            found[member.name.split("/", 1)[1]] = file.read()
    found.pop("PKG-INFO")
    return found


def _files_of_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without the metadata that the build adds."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name) for name in names}


def compare(title: str, found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    """Raise ReleaseError that names what is missing, added or changed."""
    for what, names in (
        ("lacks", wanted.keys() - found.keys()),
        ("should not have", found.keys() - wanted.keys()),
        ("has another text in", {name for name in found if wanted.get(name) != found[name]}),
    ):
        if names:
            raise ReleaseError(f"{title} {what} {', '.join(sorted(names))}")
