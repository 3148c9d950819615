"""Makes texts of unknown origin safe to show: invisible characters visible, passwords masked.

A password is masked by its position in a URL or after ``password=``; and anywhere, if it is in the
settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

MASK = "***"
_USER_AND_PASSWORD = re.compile(r"(?<=//)(?:(?!//)\S)*@")
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(
    r"""(pass(?:word|wd|phrase)['"]?\s*[=:]\s*)b?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,&)>\]}]+)""",
    re.IGNORECASE,
)


def escape_unprintable(text: str) -> str:
    """Return a text with its invisible characters in Python's notation.

    These include control characters and those that change the direction of text. The result is not
    escaped for HTML.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def without_passwords(text: str) -> str:
    """Return a message without passwords, users in URLs, and the arguments of commands.

    Passwords of the settings are masked anywhere, unless they are too short or ordinary words (see
    ``_ORDINARY``). Others are masked in ``//…@`` and after ``password=``. Arguments are cut because
    a server repeats those of an unknown command, which may be a lock's token or a password.
    """
    text = _ARGUMENTS.sub("", text)
    known = known_passwords()
    if known is not None:
        text = known.sub(MASK, text)
    text = _USER_AND_PASSWORD.sub(f"{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", text)


def hide_secrets(error: BaseException, handled: BaseException | None) -> Iterable[BaseException]:
    """Remove passwords and command arguments from an error and its causes, for tracebacks.

    ``handled`` was being handled when the failed operation began. It and its causes belong to the
    application and stay as they are. Returns the others.
    """
    seen: dict[int, Any] = {id(handled): handled}
    _clean(error, seen)
    del seen[id(handled)]
    return seen.values()


def _clean(error: BaseException | None, seen: dict[int, Any]) -> None:
    if error is None or id(error) in seen:
        return
    seen[id(error)] = error
    error.args = tuple(_cleaned(item, seen) for item in error.args)
    for name in ("msg", "strerror"):  # the texts of ImportError and OSError
        if isinstance(text := getattr(error, name, None), str):
            setattr(error, name, without_passwords(text))
    _clean(error.__cause__, seen)
    _clean(error.__context__, seen)


def _cleaned(item: Any, seen: dict[int, Any]) -> Any:
    match item:
        case str():
            return without_passwords(item)
        case bytes():
            return without_passwords(item.decode(errors="replace")).encode()
        case list() | tuple():  # also of a subclass, which takes other arguments
            return (list if isinstance(item, list) else tuple)(_cleaned(one, seen) for one in item)
        case BaseException():
            _clean(item, seen)
    return item


SHORTEST = 4
"""Characters from which on a password is masked anywhere. A shorter one is part of too many words,
and is masked only in a URL or after ``password=``."""

_SETTINGS = re.compile(r"LOCKS|CACHES|CELERY.*|.*BROKER.*")
_PASSWORD = re.compile(r"pass|secret|credential", re.IGNORECASE)
BETWEEN_URLS = re.compile(r"[,;]\s*(?=[a-z+]+://)", re.IGNORECASE)
_BETWEEN_PARTS = re.compile(r"[/?#@:\[\]]+")
_URLS_OF_CELERY = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
_ORDINARY = (
    "redis rediss unix django_redis_lock django_redis locks localhost password username default "
    "celery broker caches"
)
"""Messages need these words and their parts. Such a password is masked by its position as well."""


def known_passwords() -> re.Pattern[str] | None:
    """Return a pattern of the passwords in LOCKS, CACHES and Celery's settings, or ``None``."""
    app: Any = None
    if "celery.app" in sys.modules:
        from celery.app import app_or_default

        app = app_or_default()
        app = app if app.configured else None  # reading its settings would configure it
    changes = str([app.conf.changes.get(name) for name in _URLS_OF_CELERY]) if app else ""
    try:
        return _known_passwords(app, changes)
    except ImproperlyConfigured:  # no settings yet
        return None


@lru_cache(maxsize=1)
def _known_passwords(app: Any, changes: str) -> re.Pattern[str] | None:
    """Cached until the configuration of Celery's app has other ``changes``."""
    values = [getattr(settings, name) for name in dir(settings) if _SETTINGS.fullmatch(name)]
    values += [getattr(app.conf, name) for name in _URLS_OF_CELERY if app]
    forms = {form for password in _passwords_in(values) for form in _forms(password)}
    secrets = [form for form in forms if len(form) >= SHORTEST and form.casefold() not in _ORDINARY]
    secrets.sort(key=len, reverse=True)  # a longer one may contain a shorter one
    return re.compile("|".join(map(re.escape, secrets)), re.IGNORECASE) if secrets else None


def _passwords_in(value: Any) -> Iterator[str]:
    """Yield the passwords of a setting, which may be malformed."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from _passwords_in(key)
                named = isinstance(item, str) and _PASSWORD.search(str(key))
                yield from [item] if named else _passwords_in(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                yield from _passwords_in(item)
        case bytes():
            yield from _passwords_in(value.decode(errors="replace"))
        case str():
            for url in BETWEEN_URLS.split(value):
                yield from _passwords_in_url(url)


def _passwords_in_url(url: str) -> Iterator[str]:
    """Yield what is a password in a URL, or may be one because the URL is malformed."""
    before = url.rpartition("@")[0]
    inside = before.partition("//")[2] or before
    _, colon, password = inside.partition(":")
    yield password if colon else inside
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # a port that is none may be a password
        yield url.partition("//")[2].partition(":")[2]
    else:
        yield from (value for key, value in parse_qsl(parts.query) if _PASSWORD.search(key))


def _forms(password: str) -> Iterator[str]:
    """Yield the forms of a password in messages, whole or cut by a parser."""
    for plain in (password, unquote(password)):
        yield from (plain, quote(plain, safe=""), repr(plain)[1:-1])
        yield from _BETWEEN_PARTS.split(plain)


setting_changed.connect(lambda **kwargs: _known_passwords.cache_clear(), weak=False)
