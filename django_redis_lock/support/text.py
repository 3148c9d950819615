"""Makes texts of unknown origin safe to show: invisible characters visible, passwords masked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.support.celery_app import celery_app

MASK = "***"
SHORTEST = 4
"""Characters of the shortest password that is masked anywhere: shorter ones are in many words."""
BETWEEN_URLS = re.compile(r"[,;]\s*(?=[a-z+]+://)", re.IGNORECASE)
_USER_AND_PASSWORD = re.compile(r"(?<=//)(?:(?!//)\S)*@")
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(
    r"""(pass(?:word|wd|phrase)['"]?\s*[=:]\s*)b?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,&)>\]}]+)""",
    re.IGNORECASE,
)
_SETTINGS = re.compile(r"LOCKS|CACHES|CELERY.*|.*BROKER.*")
_PASSWORD = re.compile(r"pass|secret|credential", re.IGNORECASE)
_BETWEEN_PARTS = re.compile(r"[/?#@:\[\]]+")
_URLS_OF_CELERY = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
_ORDINARY = (
    "redis rediss unix django_redis_lock django_redis locks localhost password username default "
    "celery broker caches"
)
"""Messages need these words and their parts. Such a password is masked by its position as well."""


def escape_unprintable(text: str) -> str:
    """Return a text with its invisible characters in Python's notation. It is not escaped for HTML.

    These include control characters and those that change the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def without_passwords(text: str) -> str:
    """Return a message without passwords, users in URLs, and the arguments of commands.

    Passwords of the settings are masked anywhere unless they are too short or ``_ORDINARY``, others
    in ``//…@`` and after ``password=``. A server repeats the arguments of an unknown command, which
    may be a token or a password.
    """
    text = _ARGUMENTS.sub("", text)
    if known := sorted(_known_forms(), key=len, reverse=True):  # a longer may contain a shorter
        text = re.sub("|".join(map(re.escape, known)), MASK, text, flags=re.IGNORECASE)
    text = _USER_AND_PASSWORD.sub(f"{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", text)


def _known_forms() -> set[str]:
    """Return the passwords in LOCKS, CACHES and Celery's settings, in each of their forms."""
    try:
        values = [getattr(settings, name) for name in dir(settings) if _SETTINGS.fullmatch(name)]
    except ImproperlyConfigured:  # no settings yet
        return set()
    app = celery_app()
    if app and app.configured:  # reading its settings would configure it
        values += [getattr(app.conf, name) for name in _URLS_OF_CELERY]
    forms = {form for password in _passwords_in(values) for form in _forms(password)}
    return {each for each in forms if len(each) >= SHORTEST and each.casefold() not in _ORDINARY}


def _passwords_in(value: Any) -> Iterator[str]:
    """Yield the passwords of a setting, which may be malformed."""
    match value:
        case Mapping():
            for key, item in value.items():
                named = isinstance(item, str) and _PASSWORD.search(str(key))
                yield from [item] if named else _passwords_in(item)
        case list() | tuple() | set():
            for item in value:
                yield from _passwords_in(item)
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
