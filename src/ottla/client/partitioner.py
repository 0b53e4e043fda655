"""Which partition a record goes to, as the Java client's default decides it.

Keyed records: murmur2 of the key's bytes, so that every client puts a key into the same partition. Records without
a key stick to one partition until a batch of it is full, then move on: fewer, larger batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

try:
    from ottla.client._murmur2 import murmur2, partition_column
except ImportError:  # no C compiler when the package was built: slower, the same answers
    from ottla.client.murmur2 import murmur2, partition_column

__all__ = ["Partitioner", "StickyChoice", "murmur2_partitioner", "partition_column"]

Partitioner = Callable[[bytes | None, int], int | None]
"""(key, number of partitions) -> partition, or None for "any": the producer's sticky choice."""


def murmur2_partitioner(key: bytes | None, partition_count: int) -> int | None:
    """Java's default: the hash without its sign bit, modulo the number of partitions."""
    if key is None:
        return None
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyChoice:
    """One partition at a time for records without a key. `move_on` is called when a batch was closed."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._current: dict[str, int] = {}
        self._available: dict[str, Sequence[int]] = {}

    def current(self, topic: str, available: Sequence[int]) -> int:
        """`available` are the partitions that can be written. A choice that is not among them any more is dropped."""
        if self._available.get(topic) is not available:
            self._available[topic] = available
            if self._current.get(topic) not in available:
                self._current[topic] = self._random.choice(available)
        return self._current[topic]

    def move_on(self, topic: str, available: Sequence[int]) -> None:
        """Another partition than the last one, if there is another."""
        others = [index for index in available if index != self._current.get(topic)]
        if others:
            self._current[topic] = self._random.choice(others)
