"""The model of held locks: permissions and an address, without a table and without the admin."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

from django_redis_lock.admin import HeldLockAdmin
from django_redis_lock.models import HeldLock
from tests.tools import Child
from tests.tools.docs import DOCS, table

OURS = "django_redis_lock"


@pytest.mark.django_db
def test_the_permissions_are_two() -> None:
    permissions = Permission.objects.filter(content_type__app_label=OURS)
    assert {item.codename: item.name for item in permissions} == {
        "view_heldlock": "Can view held lock",
        "release_heldlock": "Can release held locks",
    }
    documented = [row[0] for row in table(DOCS / "reference/admin.md", "Permissions")]
    assert documented == [f"{OURS}.view_heldlock", f"{OURS}.release_heldlock"]


def test_the_attributes_of_the_admin_and_their_defaults_are_those_of_the_code() -> None:
    for name, default, _ in table(DOCS / "reference/admin.md", "HeldLockAdmin"):
        assert repr(getattr(HeldLockAdmin, name)) == default


@pytest.mark.django_db
def test_the_migrations_are_complete_and_make_no_table() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    assert not [name for name in connection.introspection.table_names() if OURS in name]


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


@pytest.mark.parametrize(
    "apps",
    [
        OURS,
        f"{OURS} django.contrib.contenttypes django.contrib.auth",
    ],
)
def test_without_the_admin(apps: str, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    monkeypatch.setitem(os.environ, "LOCK_TEST_APPS", apps)
    program = """
        from django.core.management import call_command
        call_command("check", fail_level="WARNING", stdout=sys.stderr)
        call_command("migrate", verbosity=0)
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
        call_command("dumpdata", stdout=open(os.devnull, "w"))
        with lock("bare", timeout=60):
            say(locks["default"].holder("bare").name)
        from django.conf import settings
        for app in ("admin", "auth", "contenttypes"):
            module = f"django.contrib.{app}"
            if module not in settings.INSTALLED_APPS and f"{module}.models" in sys.modules:
                say(f"{module} was imported")
        if "django_redis_lock.admin" in sys.modules:
            say("our admin was imported")
        say("done")
    """
    before = 'os.environ["DJANGO_SETTINGS_MODULE"] = "tests.apps.bare_settings"'
    with Child(program, before=before) as child:
        assert child.hear() == "bare"
        assert child.hear() == "done"
        assert child.end() == 0
