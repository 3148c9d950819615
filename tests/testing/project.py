"""A small project of a user, whose tests run in a process of their own with the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.tools import ROOT
from tests.tools.docs import DOCS, blocks

SETTINGS = """
    SECRET_KEY = "small"
    USE_TZ = True
    INSTALLED_APPS = ["django_redis_lock"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{url}"}}
    LOCKS = {"default": {"TIMEOUT": 20}, "second": {"LOCATION": "{url}", "KEY_PREFIX": "two"}}
"""
HEAD = """
    import asyncio, os, threading
    import pytest
    from django.test import SimpleTestCase, TestCase, override_settings
    from django_redis_lock import lock, locks
    from django_redis_lock.exceptions import *
    from django_redis_lock.testing import *
"""
PLUGIN = "django_redis_lock.testing.plugin"
GUIDE = DOCS / "how-to/testing.md"
CONFTEST = "# conftest.py\n"


class Project:
    """The files of a project, and runs of its tests."""

    def __init__(self, path: Path, url: str = "redis://127.0.0.1:1") -> None:
        self.path = path
        self.write("small_settings.py", SETTINGS.replace("{url}", url))
        self.write("pytest.ini", "[pytest]")  # else one of the folders above is looked for

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text))

    def configure(self, *lines: str) -> None:
        """Write the configuration file of pytest, with Django's settings."""
        known = ["[pytest]", "DJANGO_SETTINGS_MODULE = small_settings", "filterwarnings = error"]
        (self.path / "pytest.ini").write_text("\n".join([*known, *lines]))

    def run(self, *args: str, **env: str) -> dict[str, int]:
        """Run pytest; return how many tests passed, failed and so on."""
        self.program(
            *("-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-ra", "--timeout=60"),
            *args,
            **env,
        )
        (last,) = re.findall(r"^=+ (.+) in [\d.]+s.* =+$", self.output, re.MULTILINE)[-1:]
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}

    def program(self, *args: str, **env: str) -> int:
        outer = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
        outer.pop("DJANGO_SETTINGS_MODULE", None)
        outer.pop("CI", None)  # where it is set, pytest repeats whole messages at the end
        finished = subprocess.run(
            [sys.executable, *args],
            cwd=self.path,
            env={**outer, "PYTHONPATH": f"{self.path}{os.pathsep}{ROOT}", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        self.output = finished.stdout
        return finished.returncode

    def tests(self, text: str, name: str = "test_small.py") -> None:
        self.write(name, textwrap.dedent(HEAD) + textwrap.dedent(text))

    def follow_the_guide(self) -> int:
        """Write the files of the how-to guide about tests; return how many tests it has."""
        texts = {"ini": "", "python": "", "conftest": ""}
        for block in blocks(GUIDE):
            if block.language in texts:
                kind = "conftest" if block.text.startswith(CONFTEST) else block.language
                texts[kind] += block.text + "\n"
        self.write("test_guide.py", texts["python"])
        self.write("conftest.py", texts["conftest"])
        self.configure(*texts["ini"].splitlines()[1:])
        return len(re.findall(r"^ *def test_", texts["python"], re.MULTILINE))
