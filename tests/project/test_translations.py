"""The translations: nothing missing, nothing left over, and compiled from what is written.

``make messages`` writes the files.
"""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog
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


def marked() -> set[tuple[str, ...]]:
    """Return the texts that the package marks, with their plurals."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                texts = node.args[: CALLS.get(node.func.id, 0)]
                found.add(tuple(ast.literal_eval(text) for text in texts))
    for path in PACKAGE.rglob("*.html"):
        for match in _IN_TEMPLATE.finditer(templatize(path.read_text())):
            found.add(tuple(ast.literal_eval(text) for text in match.groups() if text))
    return found - {()}


def catalog(language: str, ending: str) -> Catalog:
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / f"django.{ending}"
    with path.open("rb") as file:
        return read_mo(file) if ending == "mo" else read_po(file, language, abort_invalid=True)


def translations(found: Catalog) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the translations of each text; both with the plural if there is one."""
    return {_forms(one.id): _forms(one.string) for one in found if one.id}


def _forms(text: Any) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def placeholders(text: str) -> set[Any]:
    if "%(" in text:
        return set(re.findall(r"%\(\w+\)s", text))
    return {field for _, field, _, _ in string.Formatter().parse(text) if field}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_text_is_in_the_file_and_nothing_else(language: str) -> None:
    """And what is compiled is what is written."""
    written = translations(catalog(language, "po"))
    assert written.keys() == marked()
    compiled = {texts: forms for texts, forms in written.items() if all(forms)}
    assert translations(catalog(language, "mo")) == compiled
    assert bool(compiled) == (language in TRANSLATED)


@pytest.mark.parametrize("language", TRANSLATED)
def test_each_text_is_translated(language: str) -> None:
    found = catalog(language, "po")
    for texts, forms in translations(found).items():
        assert len(forms) == (found.num_plurals if len(texts) > 1 else 1), texts
        assert all(forms), texts
        assert placeholders(forms[-1]) == placeholders(texts[-1]), texts
        assert placeholders(forms[0]) <= placeholders(texts[-1]), texts
