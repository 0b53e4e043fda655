"""Counters of the data that a broker serves, by kind of client. The metrics read them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reads:
    """Requests and record bytes served to one kind of client."""

    requests: int = 0
    bytes: int = 0
    """Bytes of records."""

    def note(self, size_bytes: int) -> None:
        """Counts one request that was served this many bytes of records."""
        self.requests += 1
        self.bytes += size_bytes


@dataclass(slots=True)
class Traffic:
    """Reads served since the broker started."""

    by_consumers: Reads
    by_replicas: Reads

    @classmethod
    def none(cls) -> Traffic:
        """Returns counters that start at zero."""
        return cls(Reads(), Reads())


@dataclass(slots=True)
class RecordsRead:
    """Records of one topic that were read by one kind of client."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class TopicTraffic:
    """Records of one topic that were written to and read from this broker, since the broker opened the topic."""

    batches_in: int = 0
    records_in: int = 0
    bytes_in: int = 0
    """Appended for producers."""
    records_followed: int = 0
    bytes_followed: int = 0
    """Replicated from leaders."""
    by_consumers: RecordsRead = field(default_factory=RecordsRead)
    by_replicas: RecordsRead = field(default_factory=RecordsRead)

    def note_batch(self, records: int, size_bytes: int) -> None:
        """Counts a batch from a producer. Runs of batches are counted where they are appended."""
        self.batches_in += 1
        self.records_in += records
        self.bytes_in += size_bytes
