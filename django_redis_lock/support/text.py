"""Makes texts of unknown origin safe to show: invisible characters visible, passwords masked."""

from __future__ import annotations

import re
from typing import Any

from django_redis_lock.support.passwords import known_passwords

MASK = "***"
_USER_AND_PASSWORD = re.compile(r"(?<=//)(?:(?!//)\S)*@")
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(
    r"""(pass(?:word|wd|phrase)['"]?\s*[=:]\s*)b?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,&)>\]}]+)""",
    re.IGNORECASE,
)


def visible(text: str) -> str:
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
    ``passwords``). Others are masked in ``//…@`` and after ``password=``. Arguments are cut because
    a server repeats those of an unknown command, which may be a lock's token or a password.
    """
    text = _ARGUMENTS.sub("", text)
    known = known_passwords()
    if known is not None:
        text = known.sub(MASK, text)
    text = _USER_AND_PASSWORD.sub(f"{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", text)


def keep_secrets(error: BaseException) -> str:
    """Remove passwords and command arguments from an error and its causes; return its message.

    The causes are cleaned too, because a traceback shows them.
    """
    _clean(error, set())
    return str(error)


def _clean(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.args = tuple(_cleaned(item, seen) for item in error.args)
    for name in ("msg", "strerror"):  # the texts of ImportError and OSError
        if isinstance(text := getattr(error, name, None), str):
            setattr(error, name, without_passwords(text))
    _clean(error.__cause__, seen)
    _clean(error.__context__, seen)


def _cleaned(item: Any, seen: set[int]) -> Any:
    match item:
        case str():
            return without_passwords(item)
        case bytes():
            return without_passwords(item.decode(errors="replace")).encode()
        case list() | tuple():
            return type(item)(_cleaned(one, seen) for one in item)
        case BaseException():
            _clean(item, seen)
    return item
