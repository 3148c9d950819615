"""Words of strangers, made fit to be read: names, hosts and metadata come from anybody."""

from __future__ import annotations

import re

_USER_AND_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
_IN_QUERY = re.compile(r"(?<=[?&])((?:username|password)=)[^&\s]*")


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
    """Return a message in which no URL tells its user and password."""
    return _IN_QUERY.sub(r"\1***", _USER_AND_PASSWORD.sub("***@", text))
