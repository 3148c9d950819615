"""Management commands that hold a lock, run by ``python -m tests.apps.commands NAME``."""

from __future__ import annotations

import signal
import sys

from django_redis_lock.management import LockedCommand


class Command(LockedCommand):
    lock_name = "import:{name}"

    def add_arguments(self, parser):
        parser.add_argument("name")

    def handle(self, name, **options):
        print(self.lock.fence, flush=True)
        try:
            while True:
                signal.pause()
        finally:
            print("ends", flush=True)


if __name__ == "__main__":
    import django

    django.setup()
    Command().run_from_argv(["manage.py", "import", *sys.argv[1:]])
