"""Which shard of a cluster keeps a lock.

A script needs all keys of a lock on one node, and many locks share an index, a fence and an audit.
So each name belongs to one of a fixed number of shards. All keys of a shard have its tag as their
hash tag, which puts them into one slot.

The number of shards and their tags must never change: programs that disagree about them do not
exclude each other.
"""

from __future__ import annotations

from binascii import crc_hqx

from redis.crc import key_slot

SHARDS = 64
"""Enough to give each of up to 64 masters a share; few enough to list."""
SLOTS = 16384


def _tags() -> tuple[str, ...]:
    """Return a tag for each shard: the smallest number whose slot is in the shard's range.

    The ranges have one length and cover all slots. So nodes that share the slots evenly share the
    locks evenly, too.
    """
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < SHARDS:
        tags.setdefault(key_slot(str(number).encode()) * SHARDS // SLOTS, str(number))
        number += 1
    return tuple(tags[shard] for shard in range(SHARDS))


TAGS = _tags()
"""The hash tag of each shard."""
SHARD_SLOTS = tuple(key_slot(tag.encode()) for tag in TAGS)
"""The slot of each shard."""


def shard_of(name: str) -> int:
    """Return the shard of a lock: the CRC16 of its name in UTF-8, modulo the number of shards."""
    return crc_hqx(name.encode(), 0) % SHARDS
