"""Maps a group to a partition of `__consumer_offsets`; the leader of that partition is the group's coordinator."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"


def partition_of(group: str, partition_count: int) -> int:
    """Returns the partition of a group, computed like Kafka so that a copied topic stays valid: Java's hash of the
    name, over its UTF-16 units."""
    units = group.encode("utf-16-be", "surrogatepass")
    code = 0
    for place in range(0, len(units), 2):
        code = (31 * code + (units[place] << 8 | units[place + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    # The smallest int of Java has no positive counterpart.
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
