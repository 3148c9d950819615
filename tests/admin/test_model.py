"""The model of held locks: permissions and an address, without a table and without the admin."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command

from django_redis_lock.admin import HeldLockAdmin
from django_redis_lock.models import HeldLock
from tests.tools import Child
from tests.tools.docs import DOCS, table

OURS = "django_redis_lock"


@pytest.mark.django_db
def test_permissions_and_attributes_are_those_of_the_page() -> None:
    permissions = Permission.objects.filter(content_type__app_label=OURS)
    assert {item.codename: item.name for item in permissions} == {
        "view_heldlock": "Can view held lock",
        "release_heldlock": "Can release held locks",
    }
    page = DOCS / "reference/admin.md"
    documented = [row[0] for row in table(page, "Permissions")]
    assert documented == [f"{OURS}.view_heldlock", f"{OURS}.release_heldlock"]
    for name, default, _ in table(page, "HeldLockAdmin"):
        assert repr(getattr(HeldLockAdmin, name)) == default


@pytest.mark.django_db
def test_queries_find_nothing_and_ask_nobody(django_assert_num_queries: Any) -> None:
    """Code that walks through all models skips this one, which has no table."""
    with django_assert_num_queries(0):
        for manager in (HeldLock.objects, HeldLock._default_manager, HeldLock._base_manager):
            assert list(manager.all()) == []
            assert manager.filter(name="a").count() == 0
    for options in ({}, {"use_base_manager": True}):
        out = io.StringIO()
        call_command("dumpdata", OURS, stdout=out, **options)
        assert json.loads(out.getvalue()) == []


@pytest.mark.parametrize("using", ["default", "a:b", "a%3Ab", "ünïcode/ /"])
@pytest.mark.parametrize("name", ["product:42", ":", "a b/c?d#e", "%", "é\u202e", "x" * 512])
def test_a_key_is_read_back(using: str, name: str) -> None:
    lock = HeldLock.from_key(HeldLock.of(using, name).pk)
    assert lock is not None
    assert (lock.using, lock.name) == (using, name)
    assert lock.holder is None


@pytest.mark.parametrize("apps", [OURS, f"{OURS} django.contrib.contenttypes django.contrib.auth"])
def test_without_admin_auth_and_celery(
    apps: str, monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    monkeypatch.setitem(os.environ, "LOCK_TEST_APPS", apps)
    program = """
        from django.core.management import call_command
        call_command("check", fail_level="WARNING", stdout=sys.stderr)
        call_command("migrate", verbosity=0)
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
        call_command("dumpdata", stdout=open(os.devnull, "w"))
        lock("bare", timeout=60).acquire()
        for words in ("list", "release bare --noinput --reason stuck", "history", "doctor"):
            call_command("locks", *words.split(), stdout=sys.stderr)
        from django.conf import settings
        for app in ("admin", "auth", "contenttypes"):
            module = f"django.contrib.{app}"
            if module not in settings.INSTALLED_APPS and f"{module}.models" in sys.modules:
                say(f"{module} was imported")
        if "django_redis_lock.admin" in sys.modules:
            say("our admin was imported")
        say("done")
    """
    bare = 'os.environ["DJANGO_SETTINGS_MODULE"] = "tests.apps.bare_settings"'
    before = f'{bare}; sys.modules["celery"] = None'
    with Child(program, before=before) as child:
        assert child.hear() == "done"
        assert child.end() == 0
