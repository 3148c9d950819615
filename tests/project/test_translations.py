"""The translations: nothing missing, nothing left over, and compiled from what is written.

``make messages`` writes the files.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from django.utils.translation.template import templatize

import django_redis_lock
from tests.tools import syntax_tree

PACKAGE = Path(django_redis_lock.__file__).parent
LANGUAGES = ("en", "de", "zh_Hans")
TRANSLATED = ("de", "zh_Hans")
"""All but English, in which the texts are written."""

CALLS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2, "ngettext_lazy": 2}
"""Functions that mark a text, with how many of their arguments are texts."""
_QUOTED = r"u('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_IN_TEMPLATE = re.compile(rf"gettext\({_QUOTED}(?:, {_QUOTED})?")


def in_python(path: Path) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            texts = node.args[: CALLS.get(node.func.id, 0)]
            if texts:
                yield tuple(ast.literal_eval(text) for text in texts)


def in_template(path: Path) -> Iterator[tuple[str, ...]]:
    for match in _IN_TEMPLATE.finditer(templatize(path.read_text())):
        yield tuple(ast.literal_eval(text) for text in match.groups() if text)


def marked() -> set[tuple[str, ...]]:
    found = [texts for path in PACKAGE.rglob("*.py") for texts in in_python(path)]
    found += [texts for path in PACKAGE.rglob("*.html") for texts in in_template(path)]
    return set(found)


def po(language: str) -> Catalog:
    with (PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po").open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


def mo(language: str) -> Catalog:
    with (PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        return read_mo(file)


def texts_of(message: Message) -> tuple[str, ...]:
    """Return the text that is translated, with its plural if it has one."""
    return (message.id,) if isinstance(message.id, str) else tuple(message.id)


def translations(message: Message) -> tuple[str, ...]:
    return (message.string,) if isinstance(message.string, str) else tuple(message.string)


def placeholders(text: str) -> set[Any]:
    if "%(" in text:
        return set(re.findall(r"%\(\w+\)s", text))
    return {field for _, field, _, _ in string.Formatter().parse(text) if field}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_text_is_in_the_file_and_nothing_else(language: str) -> None:
    catalog = po(language)
    assert {texts_of(message) for message in catalog if message.id} == marked()


@pytest.mark.parametrize("language", TRANSLATED)
def test_each_text_is_translated(language: str) -> None:
    catalog = po(language)
    for message in catalog:
        if not message.id:
            continue
        forms = translations(message)
        assert len(forms) == (catalog.num_plurals if message.pluralizable else 1), message.id
        assert all(forms), message.id
        expected = placeholders(texts_of(message)[-1])
        assert placeholders(forms[-1]) == expected, message.id
        assert placeholders(forms[0]) <= expected, message.id


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    written = {
        texts_of(message): translations(message)
        for message in po(language)
        if message.id and all(translations(message))
    }
    compiled = {texts_of(message): translations(message) for message in mo(language) if message.id}
    assert compiled == written
    assert bool(compiled) == (language in TRANSLATED)
