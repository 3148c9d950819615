"""The names of the held locks, read in pages from an index that changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import translate
from itertools import islice
from re import compile as compile_pattern

from django_redis_lock.protocol.calls import Call, ReadIndex, Steps, ask
from django_redis_lock.support.arguments import MAX_NAME_LENGTH, check_name


def write_page(entries: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return entries, each a name and a lease end, in the form of the reply of ``index.lua``."""
    names, ends, name = [], [], b""
    for name, end in entries:
        names.append(b"" if b"\n" in name else name)
        ends.append(end)
    return [b"\n".join(names), b"\n".join(ends), name]


def read_name(member: bytes) -> str | None:
    """Return a member of the index as a name, ``None`` if it is not one."""
    with suppress(ValueError):
        return check_name(member.decode())
    return None


def _read_names(members: bytes) -> list[str] | list[str | None]:
    """Read the names of a page: all at once if that suffices, which is ten times faster."""
    with suppress(ValueError):
        names = members.decode().split("\n")
        if all(names) and max(map(len, names)) <= MAX_NAME_LENGTH and "".join(names).isprintable():
            return names
    return [*map(read_name, members.split(b"\n"))]


@dataclass(slots=True, eq=False)
class ReadPages(Call):
    """Read a page of the index of each of several servers or shards.

    ``None`` stands for an index that was read to its end and, in the answer, for a page that could
    not be read.
    """

    parts: Sequence[ReadIndex | None]

    def of(self, number: int) -> ReadIndex:
        """Return the call for one of them; after its end it reads nothing."""
        return self.parts[number] or ReadIndex("+inf", b"", 0)


def read_indexes(pattern: str, number: int, size: int, queues: bool) -> Steps[dict[str, float]]:
    """Read the indexes of so many servers or shards, ``size`` names in all at a time.

    Returns the names that match a shell pattern with the ends of their leases, in ms, infinite for
    none; the latest first.
    """
    matches, found = compile_pattern(translate(pattern)).match, dict[str, float]()
    # With pages of one name, a lock that is renewed again and again would fill them for ever.
    parts: list[ReadIndex | None] = [ReadIndex("", b"", max(2, size // number), queues)] * number
    while any(parts):
        only = parts[0] if number == 1 else None
        pages = [(yield from ask(only))] if only else (yield from ask(ReadPages(parts)))
        for position, (call, page) in enumerate(zip(parts, pages, strict=True)):
            parts[position] = None
            if call is not None and page is not None:
                members, ends, last = page[0], page[1].split(), page[2]
                for name, end in zip(_read_names(members), map(float, ends), strict=False):
                    if name is not None and matches(name) and end >= found.get(name, end):
                        found[name] = end
                parts[position] = _next_page(call, ends, last)
    ordered = sorted(zip(found.values(), found, strict=True), reverse=True)
    return {name: end for end, name in ordered}


def _next_page(call: ReadIndex, ends: Sequence[bytes], last: bytes) -> ReadIndex | None:
    """Return the call for the next page, ``None`` after the last.

    An offset would not do: when an entry leaves, one that was not read yet takes its place. The
    next page begins at the last lease end, so that some names come twice and count once. If the
    whole page has one lease end, as leases with no expiry do, it begins after the last name.
    """
    if len(ends) < call.count:
        return None
    return replace(call, start=ends[-1].decode(), after=last if ends[0] == ends[-1] else b"")


def in_pages(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(names)
    while page := list(islice(left, size)):
        yield page
