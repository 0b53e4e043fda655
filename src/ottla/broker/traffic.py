"""How much a broker was asked for and gave, by who asked: for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reads:
    requests: int = 0
    bytes: int = 0
    """Of records."""

    def note(self, size_bytes: int) -> None:
        self.requests += 1
        self.bytes += size_bytes


@dataclass(slots=True)
class Traffic:
    """Since the broker started."""

    by_consumers: Reads
    by_replicas: Reads

    @classmethod
    def none(cls) -> Traffic:
        return cls(Reads(), Reads())


@dataclass(slots=True)
class RecordsRead:
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class TopicTraffic:
    """Of one topic on this broker, since one of them came to be."""

    batches_in: int = 0
    records_in: int = 0
    bytes_in: int = 0
    """From producers."""
    records_followed: int = 0
    bytes_followed: int = 0
    """From leaders."""
    by_consumers: RecordsRead = field(default_factory=RecordsRead)
    by_replicas: RecordsRead = field(default_factory=RecordsRead)

    def note_batch(self, records: int, size_bytes: int) -> None:
        """From a producer. Runs of batches are counted where they are appended."""
        self.batches_in += 1
        self.records_in += records
        self.bytes_in += size_bytes
