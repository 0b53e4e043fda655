"""The errors of a recovery. Each message says what is wrong and where."""

from __future__ import annotations


class RecoveryError(Exception):
    """The base class of all errors in this package."""


class DamagedEntryError(RecoveryError):
    """A log entry is damaged, or is not in the entry format."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the log entry at offset {offset} cannot be used: {why}")
        self.offset = offset


class DamagedSnapshotError(RecoveryError):
    """A snapshot is torn or damaged. Recovery reports it and tries the next older one."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the snapshot {name} cannot be used: {why}")
        self.name = name


class LogTrimmedError(RecoveryError):
    """The log was trimmed past the first record that recovery needs."""

    def __init__(self, needed: int, start_offset: int, of: str) -> None:
        super().__init__(
            f"{of} needs the log from offset {needed}, but the log begins at {start_offset}; the records "
            "between them were deleted. Keep records until a snapshot covers them: trim after a snapshot, or "
            "set a longer retention.ms"
        )
        self.needed = needed
        self.start_offset = start_offset


class AheadOfLogError(RecoveryError):
    """A state or a snapshot contains records that the log does not have, so it belongs to another history."""

    def __init__(self, next_offset: int, end_offset: int, of: str) -> None:
        super().__init__(
            f"{of} is at offset {next_offset}, but the log ends at {end_offset}: it is another log, or it has "
            "lost records. Use the right log, or start without this state"
        )


class PointNotReachedError(RecoveryError):
    """The log ended before the requested recovery point."""


class DivergedError(RecoveryError):
    """The replayed state differs from the state that the writer had at this offset."""

    def __init__(self, offset: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"the state at offset {offset} has the checksum {found.hex()}, but the writer had "
            f"{expected.hex()}: the log was applied differently, or to another state"
        )
        self.offset = offset


class WorkerFailedError(RecoveryError):
    """A worker process died or cannot continue replaying its range. The state is unchanged from before that range."""

    def __init__(self, offset: int, until: int, why: str) -> None:
        super().__init__(
            f"a worker that replayed the log from offset {offset} up to {until} has failed: {why}. The state "
            "contains nothing from this range; recover again, or use workers=1"
        )
        self.offset = offset


class NotLeadingError(RecoveryError):
    """This leader has stopped: another leader has taken over, or the outcome of a write is unknown."""
