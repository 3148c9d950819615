"""Where the browser is."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise RuntimeError(
            "There is no Chromium here. Install it, such as with: apt-get install chromium; "
            "or set CHROMIUM to its path."
        )
    return found
