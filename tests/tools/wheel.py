"""Try an installed wheel: ``python -P tests/tools/wheel.py dist/NAME.whl``. It has all that the
package has in the repository, the checks pass, and a lock works."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command

ROOT = Path(__file__).parents[2]


def main(wheel: str) -> None:
    listed = ["git", "ls-files", "django_redis_lock"]
    wanted = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    missing = set(wanted.stdout.split()) - set(zipfile.ZipFile(wheel).namelist())
    assert not missing, f"the wheel lacks {sorted(missing)}"
    entry = {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"}
    settings.configure(INSTALLED_APPS=["django_redis_lock"], LOCKS={"default": entry})
    django.setup()
    import django_redis_lock
    import django_redis_lock.celery

    assert "site-packages" in str(django_redis_lock.__file__), "this is not the wheel"
    call_command("check")
    with django_redis_lock.lock("wheel") as held:
        held.ensure_held()
    print(f"{wheel}: django-redis-lock {django_redis_lock.__version__} works")


if __name__ == "__main__":
    main(sys.argv[1])
