"""The durable state of one log, in the checkpoint, the state file and the compaction mark."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.storage.startup.checkpoint import RecoveryPoint


@dataclass(slots=True)
class DurableState:
    """The part of a log's progress that the next start will find."""

    start_offset: int
    """The log's start as of the last durable record of it, in the journal or at the last start."""
    flushed_ms: int
    """When the log was last flushed."""
    recovery_point: RecoveryPoint | None = None
    """The recovery point in the checkpoint."""
    state_offset: int = 0
    """The state file covers everything below. Segments above it are still needed to rebuild the state."""
    compacted_end: int = 0
    """The end of the compacted part."""

    def covers(self, start_offset: int, end_offset: int) -> bool:
        """Reports whether the checkpoint covers the whole log."""
        point = self.recovery_point
        return point is not None and point.offset >= end_offset and point.start_offset == start_offset

    def replace_by(self, reopened: DurableState, *, is_reset: bool) -> None:
        """Takes over the state of the same log, which was reopened after a truncation."""
        self.recovery_point, self.state_offset = reopened.recovery_point, reopened.state_offset
        self.compacted_end = reopened.compacted_end
        if is_reset:
            self.start_offset = reopened.start_offset
