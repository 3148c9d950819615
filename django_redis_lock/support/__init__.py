"""What all layers use; and packages that import what they offer when it is first used.

pytest imports the plugin of this package, and so the packages that it is in, in every project of an
environment. That must not take the time to import Django.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_when_used(package: str, sources: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that offers names from the modules of ``sources``."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the one of the package
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(sources[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def celery_app() -> Any:
    """Return the app of the project, ``None`` if this process has made none."""
    if "celery.app" not in sys.modules:
        return None
    from celery.app import app_or_default, default_app

    app: Any = app_or_default() if default_app else None
    return app if app and app.fixups else None  # the app that Celery falls back to has none


def import_tasks(app: Any) -> None:
    """Import and make the tasks of an app, as ``celery -A`` does, without the system checks."""
    given = os.environ.get("CELERY_SKIP_CHECKS", "")
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    try:
        app.loader.import_default_modules()
    finally:
        os.environ["CELERY_SKIP_CHECKS"] = given  # Celery takes an empty one as none
    app.finalize()
