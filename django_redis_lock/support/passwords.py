"""Which passwords the settings hold, so that no message repeats one of them."""

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
"""Characters from which on a password is masked wherever it stands. A shorter one is in every other
word, and so is masked only in its place: in a URL, or behind ``password=``."""

_SETTINGS = re.compile(r"LOCKS|CACHES|CELERY.*|.*BROKER.*")
_PASSWORD = re.compile(r"pass|secret|credential|(?<![a-z])auth(?![a-z])", re.IGNORECASE)
_OPENING = re.compile(r"(?:[a-z0-9+.\-]*:/{1,3})?", re.IGNORECASE)
NAMES_IN_QUERY = r"(?:pass|passwd|password|pwd|auth|secret|token)="
"""How a password may be named in the query of a URL."""
_IN_QUERY = re.compile(
    rf"[?&;][a-z_]*{NAMES_IN_QUERY}(.*?)(?=&(?:db|encoding|protocol|username|[a-z]+_[a-z_]+)=|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_NO_PORT = re.compile(
    r"//(?!.*://)[^/?#@:\s\[]*:(?![\d:]*(?:[/?#\s]|\Z))([^/?#@\s]+?)(?::\d*)?(?=[/?#\s]|\Z)",
    re.IGNORECASE | re.DOTALL,
)
"""Of a URL without an "@" all that stands where only a port may."""
_BETWEEN_URLS = re.compile(r"[,;\s]+|(?<![a-z+])(?=[a-z+]+://)", re.IGNORECASE)
_GOOD_URL = re.compile(
    r"[a-z+]+://(?:([\w.-]*)(?::[^/@:?#\s]*)?@)?([\w.-]+)(?::(\d+))?(?:/\d*)?", re.IGNORECASE
)
_BETWEEN_PARTS = re.compile(r"[/?#@:\[\],;&=\s]+")
_URLS_OF_CELERY = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
_ORDINARY = "redis rediss unix django_redis_lock django_redis locks localhost password username"


def known_passwords() -> re.Pattern[str] | None:
    """Return a pattern of what is written as a password in LOCKS, CACHES and Celery's settings.

    ``None`` where there is none. A word that messages need, because it is also an alias, a host, a
    user or another value of the settings, is left out: it could not be told from the others.
    """
    app = _app_of_celery()
    changes = str([app.conf.changes.get(name) for name in _URLS_OF_CELERY]) if app else ""
    try:
        return _known_passwords(app, changes)
    except ImproperlyConfigured:  # there are no settings yet
        return None


def _app_of_celery() -> Any:
    """Return Celery's app, which need not have its URLs from Django's settings.

    ``None`` where it has read no configuration yet, for then no message can tell of it.
    """
    if "celery.app" not in sys.modules:
        return None
    from celery import current_app

    app = current_app._get_current_object()
    return app if app.configured else None


@lru_cache(maxsize=1)
def _known_passwords(app: Any, changes: str) -> re.Pattern[str] | None:
    """Read them anew where the configuration of Celery's app has had ``changes`` since."""
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
    secrets.sort(key=len, reverse=True)  # what holds another one goes first
    return re.compile("|".join(map(re.escape, secrets)), re.IGNORECASE)


def _gather(value: Any, found: set[str], ordinary: set[str]) -> None:
    """Take in the passwords of a setting, which may be malformed."""
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
    except Exception:  # of anybody's __str__
        return ""


def _read(text: str, found: set[str], ordinary: set[str]) -> None:
    """Take in what may be a password in a URL, in several, or in what was meant as one."""
    for url in {text, *_BETWEEN_URLS.split(text)}:
        found.update(_IN_QUERY.findall(url))
        found.update(_NO_PORT.findall(url))
        before, at, _ = url.rpartition("@")
        if at:
            opening = _OPENING.match(before)
            assert opening is not None  # for it matches nothing, too
            inside = before[opening.end() :]
            _, colon, password = inside.partition(":")
            found.add(password if colon else inside)
        if good := _GOOD_URL.fullmatch(url):
            ordinary.update(filter(None, good.groups()))
        elif at:
            found.add(inside)  # for who knows which part is the user


def _forms(password: str) -> Iterator[str]:
    """Yield how a password may be written in a message, in whole or where a parser cut it."""
    for plain in {password, unquote(password), unquote_plus(password)}:
        yield from (plain, quote(plain), quote(plain, safe=""), quote_plus(plain))
        yield from (repr(plain)[1:-1], json.dumps(plain)[1:-1], html.escape(plain))
        parts = _BETWEEN_PARTS.split(plain)
        if len(parts) > 1:
            yield from parts


def _forget(**kwargs: Any) -> None:
    _known_passwords.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_lock.support.passwords")
