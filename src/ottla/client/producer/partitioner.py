"""Chooses the partition of a record like the default partitioner of the Java client.

A record with a key goes to the partition given by murmur2 of the key, so that every client puts a key into the same
partition. Records without a key stick to one partition until its batch is full, which makes fewer and larger batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

try:
    from ottla.client.producer._murmur2 import murmur2, partition_column
except ImportError:  # no C compiler at build time: slower, but the same results
    from ottla.client.producer.murmur2 import murmur2, partition_column

__all__ = ["Partitioner", "StickyChoice", "murmur2_partitioner", "partition_column"]

Partitioner = Callable[[bytes | None, int], int | None]
"""Maps (key, number of partitions) to a partition, or to None for any partition: the producer's sticky choice."""


def murmur2_partitioner(key: bytes | None, partition_count: int) -> int | None:
    """Java's default: the hash without its sign bit, modulo the number of partitions."""
    if key is None:
        return None
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyChoice:
    """The current partition of each topic for records without a key. Call `move_on` when a batch is closed."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._current: dict[str, int] = {}
        self._available: dict[str, Sequence[int]] = {}

    def current(self, topic: str, available: Sequence[int]) -> int:
        """Returns the current partition. `available` are the writable ones; a choice outside of them is replaced."""
        if self._available.get(topic) is not available:
            self._available[topic] = available
            if self._current.get(topic) not in available:
                self._current[topic] = self._random.choice(available)
        return self._current[topic]

    def move_on(self, topic: str, available: Sequence[int]) -> None:
        """Chooses a different partition, if there is one."""
        others = [index for index in available if index != self._current.get(topic)]
        if others:
            self._current[topic] = self._random.choice(others)
