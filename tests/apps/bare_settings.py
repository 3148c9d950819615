"""Settings of a project without Django's admin: those of the tests, and as few apps as it says."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403 - all of them, and then some others

INSTALLED_APPS = os.environ["LOCK_TEST_APPS"].split()
MIDDLEWARE: list[str] = []
ROOT_URLCONF = None
