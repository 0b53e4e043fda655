"""What goes into a log handle and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.wire.wal_calls import CreateLog


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
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Any others, by Kafka's names."""

    def to_wire(self) -> CreateLog:
        configs = dict(self.configs)
        if self.durability is not None:
            configs["ottla.durability"] = self.durability
        if self.retention_ms is not None:
            configs["retention.ms"] = str(self.retention_ms)
        return CreateLog(self.partitions, self.replicas or 0, configs)
