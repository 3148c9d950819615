"""What all layers use; and packages that import what they offer when it is first used.

pytest imports the plugin, and so its packages, in every project. That must not import Django.
"""

from __future__ import annotations

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
