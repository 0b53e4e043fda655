"""Values that a log handle takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.protocol.wire.wal_calls import CreateLog

SHORT_RETENTION_MS = 3_600_000
SEGMENTS_PER_RETENTION = 4
DEFAULT_PATIENCE_S = 60.0
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024


class Entry(NamedTuple):
    """One record of a log."""

    offset: int
    data: bytes
    timestamp_ms: int


class Tail(NamedTuple):
    """The bounds of a log, and its writer epoch."""

    start_offset: int
    end_offset: int
    """The committed end, exclusive."""
    epoch: int
    """Epoch of the single writer; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log that `open` creates. None means the broker's default.

        LogSettings(replicas=3, durability="disk", retention_ms=60_000)

    `configs` takes any other topic configuration by its Kafka name.
    """

    replicas: int | None = None
    durability: str | None = None
    """`disk`, `cache` or `memory`."""
    retention_ms: int | None = None
    """Retention. If it is at most an hour, `segment.ms` is set to a quarter of it, unless `configs` has one: on disk
    only whole segments are deleted, and a segment that is still being written never expires."""
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Other topic configurations, by Kafka's names."""

    def to_wire(self) -> CreateLog:
        """Returns the settings as the Open request carries them."""
        configs = dict(self.configs)
        if self.durability is not None:
            configs["ottla.durability"] = self.durability
        if self.retention_ms is not None:
            configs["retention.ms"] = str(self.retention_ms)
            if self.durability != "memory" and 0 < self.retention_ms <= SHORT_RETENTION_MS:
                configs.setdefault("segment.ms", str(max(1, self.retention_ms // SEGMENTS_PER_RETENTION)))
        return CreateLog(self.partitions, self.replicas or 0, configs)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a handle."""

    patience_s: float = DEFAULT_PATIENCE_S
    """How long to look for a leader that responds, in seconds."""
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    """Maximum number of unacknowledged bytes; further appends are rejected."""
