"""The durability classes: what an acknowledgement means, chosen per topic with `ottla.durability`."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """The durability class of a topic."""

    DISK = "disk"
    """Acknowledged after stable storage: the record survives a power cut."""
    CACHE = "cache"
    """Acknowledged after the write call: the record survives a crash of the broker's process (as in Kafka)."""
    MEMORY = "memory"
    """Never written to a disk: for logs that are kept for a minute and replicated."""
