"""What the app needs is missed when Django starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.contrib import prometheus
from django_redis_lock.contrib.prometheus import metrics  # noqa: F401 - to be missed

NAME = "django_redis_lock.contrib.prometheus"


def test_missing_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each acquired lock would log an error."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "missing"))
    with pytest.raises(ImproperlyConfigured, match="missing', which is no directory"):
        AppConfig.create(NAME).ready()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("metrics",):
        monkeypatch.delitem(sys.modules, f"{NAME}.{module}")
        monkeypatch.delattr(prometheus, module)
    for module in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-redis-lock\[prometheus\]"):
        AppConfig.create(NAME).ready()
