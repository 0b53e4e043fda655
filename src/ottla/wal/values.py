"""What goes into a log handle and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.wire.wal_calls import CreateLog

SHORT_RETENTION_MS = 3_600_000
SEGMENTS_PER_RETENTION = 4


class Entry(NamedTuple):
    offset: int
    data: bytes
    timestamp_ms: int


class Tail(NamedTuple):
    start_offset: int
    end_offset: int
    """The committed end, exclusive."""
    epoch: int
    """Of the single writer, 0 if there is none."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How to create a log that is not there. What is None is as the broker is configured."""

    replicas: int | None = None
    durability: str | None = None
    """`disk`, `cache` or `memory`"""
    retention_ms: int | None = None
    """Of an hour at most, it brings a `segment.ms` of a quarter of it along, unless `configs` has one: on a disk whole
    segments go, and one that is written to is always young."""
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Any others, by Kafka's names."""

    def to_wire(self) -> CreateLog:
        configs = dict(self.configs)
        if self.durability is not None:
            configs["ottla.durability"] = self.durability
        if self.retention_ms is not None:
            configs["retention.ms"] = str(self.retention_ms)
            if self.durability != "memory" and 0 < self.retention_ms <= SHORT_RETENTION_MS:
                configs.setdefault("segment.ms", str(max(1, self.retention_ms // SEGMENTS_PER_RETENTION)))
        return CreateLog(self.partitions, self.replicas or 0, configs)
