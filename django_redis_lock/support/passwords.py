"""Finds the passwords in the settings, so that no message repeats one."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SHORTEST = 4
"""Characters from which on a password is masked anywhere. A shorter one is part of too many words,
and is masked only in a URL or after ``password=``."""

_SETTINGS = re.compile(r"LOCKS|CACHES|CELERY.*|.*BROKER.*")
_PASSWORD = re.compile(r"pass|secret|credential|(?<![a-z])auth(?![a-z])", re.IGNORECASE)
_OPENING = re.compile(r"(?:[a-z0-9+.\-]*:/{1,3})?", re.IGNORECASE)
NAMES_IN_QUERY = r"(?:pass|passwd|password|pwd|auth|secret|token)="
"""Names of a password in a URL's query."""
_IN_QUERY = re.compile(
    rf"[?&;][a-z_]*{NAMES_IN_QUERY}(.*?)(?=&(?:db|encoding|protocol|username|[a-z]+_[a-z_]+)=|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_NO_PORT = re.compile(
    r"//(?!.*://)[^/?#@:\s\[]*:(?![\d:]*(?:[/?#\s]|\Z))([^/?#@\s]+?)(?::\d*)?(?=[/?#\s]|\Z)",
    re.IGNORECASE | re.DOTALL,
)
"""In a URL without an "@", what stands where only a port may."""
_BETWEEN_URLS = re.compile(r"[,;\s]+|(?<![a-z+])(?=[a-z+]+://)", re.IGNORECASE)
_GOOD_URL = re.compile(
    r"[a-z+]+://(?:([\w.-]*)(?::[^/@:?#\s]*)?@)?([\w.-]+)(?::(\d+))?(?:/\d*)?", re.IGNORECASE
)
_BETWEEN_PARTS = re.compile(r"[/?#@:\[\],;&=\s]+")
_URLS_OF_CELERY = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
_ORDINARY = "redis rediss unix django_redis_lock django_redis locks localhost password username"


def known_passwords() -> re.Pattern[str] | None:
    """Return a pattern of the passwords in LOCKS, CACHES and Celery's settings, or ``None``.

    It leaves out passwords that are also an alias, a host, a user or another value of the settings,
    because messages need those words.
    """
    app = _app_of_celery()
    changes = str([app.conf.changes.get(name) for name in _URLS_OF_CELERY]) if app else ""
    try:
        return _known_passwords(app, changes)
    except ImproperlyConfigured:  # no settings yet
        return None


def _app_of_celery() -> Any:
    """Return Celery's app, which may have its own URLs; ``None`` if it is not configured yet."""
    if "celery.app" not in sys.modules:
        return None
    from celery.app import app_or_default

    app: Any = app_or_default()
    return app if app.configured else None


@lru_cache(maxsize=1)
def _known_passwords(app: Any, changes: str) -> re.Pattern[str] | None:
    """Cached until the configuration of Celery's app has other ``changes``."""
    found: set[str] = set()
    ordinary = {_ORDINARY}
    values = [getattr(settings, name) for name in dir(settings) if _SETTINGS.fullmatch(name)]
    for value in (*values, *(getattr(app.conf, name) for name in _URLS_OF_CELERY if app)):
        _gather(value, found, ordinary)
    written = {form for password in found for form in _forms(password)}
    text = "\n".join(ordinary).casefold()
    secrets = [one for one in written if len(one) >= SHORTEST and one.casefold() not in text]
    if not secrets:
        return None
    secrets.sort(key=len, reverse=True)  # a longer one may contain a shorter one
    return re.compile("|".join(map(re.escape, secrets)), re.IGNORECASE)


def _gather(value: Any, found: set[str], ordinary: set[str]) -> None:
    """Collect the passwords and ordinary words of a setting, which may be malformed."""
    match value:
        case None | bool() | int() | float():
            return
        case Mapping():
            for key, item in value.items():
                _gather(key, found, ordinary)
                if _PASSWORD.search(str(key)) and isinstance(item, str | bytes):
                    found.add(_text(item))
                else:
                    _gather(item, found, ordinary)
        case list() | tuple() | set() | frozenset():
            for item in value:
                _gather(item, found, ordinary)
        case _:
            text = _text(value)
            if "@" in text or "//" in text or "=" in text:
                _read(text, found, ordinary)
            else:
                ordinary.add(text)


def _text(value: Any) -> str:
    try:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    except Exception:  # any __str__ may fail
        return ""


def _read(text: str, found: set[str], ordinary: set[str]) -> None:
    """Collect possible passwords from a URL, several, or a malformed one."""
    for url in {text, *_BETWEEN_URLS.split(text)}:
        found.update(_IN_QUERY.findall(url))
        found.update(_NO_PORT.findall(url))
        before, at, _ = url.rpartition("@")
        if at:
            opening = _OPENING.match(before)
            assert opening is not None  # it also matches ""
            inside = before[opening.end() :]
            _, colon, password = inside.partition(":")
            found.add(password if colon else inside)
        if good := _GOOD_URL.fullmatch(url):
            ordinary.update(filter(None, good.groups()))
        elif at:
            found.add(inside)  # any part may be the user


def _forms(password: str) -> Iterator[str]:
    """Yield the forms of a password in messages, whole or cut by a parser."""
    for plain in {password, unquote(password), unquote_plus(password)}:
        yield from (plain, quote(plain), quote(plain, safe=""), quote_plus(plain))
        yield from (repr(plain)[1:-1], json.dumps(plain)[1:-1], html.escape(plain))
        parts = _BETWEEN_PARTS.split(plain)
        if len(parts) > 1:
            yield from parts


def _forget(**kwargs: Any) -> None:
    _known_passwords.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_lock.support.passwords")
