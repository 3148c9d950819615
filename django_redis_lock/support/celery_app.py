"""The Celery app of the project and its tasks, by the public API of Celery."""

import os
import sys
from typing import Any


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
