"""Which shard of a Redis Cluster keeps a lock.

All keys of a lock have to be on one node for a script to see them, and the index, the fence and the
audit are keys that many locks share. So names fall into a fixed number of shards. The shard's tag
is the hash tag in each of its keys, which puts them into one slot of the cluster.

Neither the number of shards nor their tags may ever change: programs that disagree about them would
not exclude each other.
"""

from __future__ import annotations

from binascii import crc_hqx

from redis.crc import key_slot

SHARDS = 64
"""How many shards there are: enough to give each of up to 64 masters a share, few to list."""
SLOTS = 16384


def _tags() -> tuple[str, ...]:
    """Return a tag for each shard, the smallest number whose slot is in the shard's stretch.

    The stretches are of one length and cover all slots, so nodes that share out the slots evenly
    share out the locks evenly too.
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
    """Return the shard of a lock: the remainder of the name's CRC16, by its UTF-8."""
    return crc_hqx(name.encode(), 0) % SHARDS
