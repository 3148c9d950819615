"""Mutants of the Lua scripts: copies that differ in one operator, constant, argument or statement.

There is no maintained tool for that. This one knows as much of Lua as the scripts use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*)
    |(?P<space>\s+)
    |(?P<text>'(?:\\.|[^'\\])*')
    |(?P<number>\d+(?:e\d+)?)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>\.\.|[=~<>]=|[-+*/%\#<>=(){}\[\];:,.])""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(
    {"and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local"}
    | {"nil", "not", "or", "repeat", "return", "then", "true", "until", "while"}
)
_OTHER = {
    "==": "~=",
    "~=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "*",
    "and": "or",
    "or": "and",
    "true": "false",
    "false": "true",
}
_OPENING, _CLOSING = "({[", ")}]"


@dataclass(frozen=True)
class Token:
    """A word, number, text or sign of a script, and where it stands."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Mutant:
    """A script with one change."""

    script: str
    source: str
    """The whole script, changed."""
    line: str
    """The line of the original in which the change begins, without indentation."""
    change: str
    """What was replaced by what."""
    number: int
    """Tells apart the same change in lines of the same text, from 1 up."""

    @property
    def id(self) -> str:
        """Names the mutant for as long as its line stays as it is."""
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.script}: {self.line} | {self.change}{again}"


def mutants(script: str, source: str) -> list[Mutant]:
    """Return all mutants of a script, in the order of its lines."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for start, end, new in sorted(set(_changes(source))):
        begin = source.rfind("\n", 0, start) + 1
        line = source[begin:].partition("\n")[0].strip()
        old, other = (" ".join(text.split()) for text in (source[start:end], new))
        change = f"{old} → {other or 'nothing'}"
        number = seen[line, change] = seen.get((line, change), 0) + 1
        found.append(Mutant(script, source[:start] + new + source[end:], line, change, number))
    return found


def tokens(source: str) -> list[Token]:
    """Return the tokens of a script without comments and space. Raises ``ValueError``."""
    found, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise ValueError(f"unknown Lua at {source[at : at + 20]!r}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind not in ("comment", "space"):
            found.append(Token(kind, match.group(), match.start()))
    return found


def _changes(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield changes as start, end and replacement."""
    all_tokens = tokens(source)
    for number, token in enumerate(all_tokens):
        before = all_tokens[number - 1] if number else None
        if token.kind == "number":
            yield token.start, token.end, _another(token.text)
        elif token.kind == "text":
            if not _names_command(all_tokens, number):
                yield token.start, token.end, "'?'" if token.text != "'?'" else "''"
        elif (token.text == "-" and _is_unary(before)) or token.text == "not":
            yield token.start, token.end, ""
        elif token.text in _OTHER:
            yield token.start, token.end, _OTHER[token.text]
        elif token.text in ("if", "elseif"):
            yield from _forced(all_tokens, number)
        elif token.text == "(" and before is not None and _is_name(before):
            yield from _swapped(source, all_tokens, number)
    yield from _removed(source, all_tokens)


def _another(number: str) -> str:
    value = int(float(number))
    return str(value + 1 if value < 100 else 10 * value)


def _names_command(all_tokens: Sequence[Token], number: int) -> bool:
    """Whether a text is a Redis command, which every test of the line would miss."""
    return number >= 2 and all_tokens[number - 2].text in ("call", "pcall")


def _is_name(token: Token) -> bool:
    return token.kind == "word" and token.text not in _KEYWORDS


def _is_unary(before: Token | None) -> bool:
    if before is None or before.text in _CLOSING or before.kind in ("number", "text"):
        return False
    return not _is_name(before)


def _forced(all_tokens: Sequence[Token], number: int) -> Iterator[tuple[int, int, str]]:
    """Take a condition as true, and as false."""
    then = next(
        index for index in range(number, len(all_tokens)) if all_tokens[index].text == "then"
    )
    start, end = all_tokens[number + 1].start, all_tokens[then - 1].end
    yield start, end, "true"
    yield start, end, "false"


def _closing(all_tokens: Sequence[Token], number: int) -> int:
    """Return where the bracket is closed that opens at ``number``."""
    depth = 0
    for index in range(number, len(all_tokens)):
        depth += (all_tokens[index].text in _OPENING) - (all_tokens[index].text in _CLOSING)
        if not depth:
            return index
    raise ValueError("a bracket is not closed")


def _swapped(
    source: str, all_tokens: Sequence[Token], number: int
) -> Iterator[tuple[int, int, str]]:
    """Swap neighbouring arguments of a call, the name of a Redis command apart."""
    before = [item.text for item in all_tokens[max(number - 3, 0) : number]]
    if "function" in before[-2:] or before[0] in ("string", "table", "math"):
        return
    close = _closing(all_tokens, number)
    arguments, index, first = [], number + 1, number + 1
    while index <= close:
        if all_tokens[index].text in _OPENING:
            index = _closing(all_tokens, index)
        elif all_tokens[index].text == "," or index == close:
            if index > first:
                arguments.append((all_tokens[first].start, all_tokens[index - 1].end))
            first = index + 1
        index += 1
    if all_tokens[number - 1].text in ("call", "pcall"):
        arguments = arguments[1:]
    for (start, end), (other_start, other_end) in pairwise(arguments):
        one, other = source[start:end], source[other_start:other_end]
        if one != other:
            yield start, other_end, other + source[end:other_start] + one


def _removed(source: str, all_tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Remove a call, an assignment or a return that fills its lines."""
    for index, token in enumerate(all_tokens):
        fresh = not source[source.rfind("\n", 0, token.start) + 1 : token.start].strip()
        inside = index and all_tokens[index - 1].kind == "sign"
        if inside and all_tokens[index - 1].text not in _CLOSING:
            continue
        if not fresh or not (_is_name(token) or token.text == "return"):
            continue
        last = _end_of_line(source, all_tokens, index)
        texts = [item.text for item in all_tokens[index : last + 1]]
        if token.text == "return" or "=" in texts or texts[-1] == ")":
            yield token.start, all_tokens[last].end, ""


def _end_of_line(source: str, all_tokens: Sequence[Token], index: int) -> int:
    """Return the last token of the line, or of what is in brackets at its end."""
    while True:
        if all_tokens[index].text in _OPENING:
            index = _closing(all_tokens, index)
        following = all_tokens[index + 1 : index + 2]
        if not following or "\n" in source[all_tokens[index].end : following[0].start]:
            return index
        index += 1
