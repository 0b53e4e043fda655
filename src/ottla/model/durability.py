"""What an acknowledgement means, chosen per topic with `ottla.durability`."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    DISK = "disk"
    """Acknowledged after stable storage: the record survives a power cut."""
    CACHE = "cache"
    """Acknowledged after the write call: the record survives the death of the broker's process (Kafka's way)."""
    MEMORY = "memory"
    """Never touches a disk: for logs that are kept for a minute and replicated."""
