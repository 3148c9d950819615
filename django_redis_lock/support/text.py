"""Words of strangers, made fit to be read: names, hosts and metadata come from anybody."""

from __future__ import annotations

import re
from typing import Any

from django_redis_lock.support.passwords import NAMES_IN_QUERY, known_passwords

MASK = "***"
_USER_AND_PASSWORD = re.compile(r"(?<=//)(?:(?!//)\S)*@")
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL | re.IGNORECASE)
_IN_QUERY = re.compile(rf"(?<=[?&])(username=|{NAMES_IN_QUERY})[^&\s]*")
_NAMED = re.compile(
    r"""(pass(?:word|wd|phrase)['"]?\s*[=:]\s*)b?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,&)>\]}]+)""",
    re.IGNORECASE,
)


def visible(text: str) -> str:
    """Return a text whose invisible characters can be seen, in Python's notation.

    Control characters, and those that turn the direction of writing, are among them. The text is
    not escaped for HTML.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def without_passwords(text: str) -> str:
    """Return a message that tells no password, no user of a URL, and no arguments of a command.

    What the settings have as a password is masked wherever it stands, unless it is too short or a
    word that messages need (see ``passwords``); any other one where it can be told by its place: in
    a URL, in the query of one, or behind ``password=``.
    A server that does not know a command repeats what came with it: a lock's token, or a password.
    """
    text = _ARGUMENTS.sub("", text)
    known = known_passwords()
    if known is not None:
        text = known.sub(MASK, text)
    text = _USER_AND_PASSWORD.sub(f"{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", _IN_QUERY.sub(rf"\1{MASK}", text))


def keep_secrets(error: BaseException) -> str:
    """Take passwords and arguments of commands out of an error; return its message.

    Out of the error itself and of all that led to it, because a traceback shows them as the cause
    of ours.
    """
    _clean(error, set())
    return str(error)


def _clean(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.args = tuple(_cleaned(item, seen) for item in error.args)
    for name in ("msg", "strerror"):  # of which an ImportError and an OSError make their text
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
