"""A new project that knows only the installed wheel: locks, the command, tasks, all modules."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.release.commands import ReleaseError, run, say
from tests.release.installing import Installed, extras

SETTINGS = """
INSTALLED_APPS += ["django_redis_lock"]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "locks": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SERVER"]},
}
LOCKS = {
    "default": {
        "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
        "LOCATION": "locks",
    },
}
"""

TAKE = """
from django_redis_lock import lock

held = lock("smoke:1", timeout=600)
assert held.acquire()
held.ensure_held()
assert not lock("smoke:1").acquire(blocking=False)
held.detach(600)  # it stays held when this process ends
"""

TASK = """
from celery import Celery
from django_redis_lock import lock
from django_redis_lock.celery import single_instance_task

app = Celery("shop")
app.conf.task_always_eager = True


@app.task
@single_instance_task(key="import:{shop_id}")
def import_products(shop_id):
    return f"imported {shop_id}"


assert import_products.delay(7).get() == "imported 7"
with lock("import:7", timeout=10):
    assert import_products.delay(7).get()["skipped"] is True
    assert import_products.delay(8).get() == "imported 8"
"""

# Plugins of pytest are left out: pytest loads them, for those who have it.
IMPORTS = """
import importlib, pkgutil
from importlib.metadata import entry_points
import django_redis_lock

plugins = tuple(each.module for each in entry_points(group="pytest11"))
prefix = "django_redis_lock."
modules = [each.name for each in pkgutil.walk_packages(django_redis_lock.__path__, prefix)]
for name in modules:
    if not name.startswith(plugins):
        importlib.import_module(name)
print(len(modules))
"""


def smoke(installed: Installed, server: str, folder: Path) -> None:
    """Try the wheel without extras, and then with all of them; Celery's is among them."""
    folder.mkdir()
    project = _Project(installed, server, folder)
    project.use()
    offered = extras(installed.wheel)
    installed.install(f"[{','.join(offered)}]")
    project.shell(TASK)
    modules = project.shell(IMPORTS).split()[-1]
    say(
        f"{installed.name}: {installed.versions()}: checks, locks, the command, a guarded task, "
        f"and all {modules} modules with the extras {', '.join(offered)}"
    )


class _Project:
    """A Django project in a folder of its own, which sees nothing of the repository."""

    def __init__(self, installed: Installed, server: str, folder: Path) -> None:
        self._python = installed.python
        self._folder = folder
        left_out = ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        self._env = {**kept, "SERVER": server, "PYTHONWARNINGS": "error:::django_redis_lock"}
        self._run("-m", "django", "startproject", "shop", ".")
        settings = folder / "shop" / "settings.py"
        settings.write_text(f"import os\n{settings.read_text()}{SETTINGS}")

    def use(self) -> None:
        """Check, migrate, hold a lock, and see, show and release it by the command."""
        self.manage("check", "--fail-level", "WARNING")
        self.manage("migrate", "--verbosity", "0")
        self.manage("makemigrations", "--check", "--dry-run")
        self.shell(TAKE)
        self._expect(["smoke:1"])
        if '"fence"' not in self.manage("locks", "show", "smoke:1", "--format", "json"):
            raise ReleaseError("manage.py locks show does not show the holder")
        self.manage("locks", "release", "smoke:1", "--noinput", "--reason", "smoke test")
        self._expect([])

    def shell(self, program: str) -> str:
        """Run a program with Django set up, as a file, so that a traceback shows its lines."""
        file = self._folder / "program.py"
        file.write_text(f"import django\ndjango.setup()\n{program}")
        return self._run("program.py", DJANGO_SETTINGS_MODULE="shop.settings")

    def manage(self, *arguments: str) -> str:
        return self._run("manage.py", *arguments)

    def _expect(self, names: list[str]) -> None:
        found = json.loads(self.manage("locks", "list", "--format", "json"))
        listed = [each["name"] for each in found["locks"]]
        if listed != names:
            raise ReleaseError(f"manage.py locks list has {listed} in place of {names}")

    def _run(self, *arguments: str, **env: str) -> str:
        return run(self._python, *arguments, cwd=self._folder, env={**self._env, **env})
