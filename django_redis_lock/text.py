"""Words of strangers, made fit to be read: names, hosts and metadata come from anybody."""

from __future__ import annotations

import re

_USER_AND_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL | re.IGNORECASE)
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
    """Return a message in which no URL tells its user and password, and no command its arguments.

    A server that does not know a command repeats what came with it: a lock's token, or a password.
    """
    return _IN_QUERY.sub(r"\1***", _USER_AND_PASSWORD.sub("***@", _ARGUMENTS.sub("", text)))


def keep_secrets(error: Exception) -> str:
    """Take passwords and arguments of commands out of an error; return its message.

    Out of the error itself, because a traceback shows it as the cause of ours.
    """
    error.args = tuple(
        without_passwords(item) if isinstance(item, str) else item for item in error.args
    )
    return str(error)
