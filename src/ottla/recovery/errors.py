"""What can go wrong in a recovery. Each error says what is wrong and where."""

from __future__ import annotations


class RecoveryError(Exception):
    """The base of all errors of this package."""


class DamagedEntryError(RecoveryError):
    """An entry of the log is not what was written, or not in this format."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the log entry at offset {offset} cannot be used: {why}")
        self.offset = offset


class DamagedSnapshotError(RecoveryError):
    """A snapshot is torn or damaged. Recovery names it and goes on with the one before."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the snapshot {name} cannot be used: {why}")
        self.name = name


class LogTrimmedError(RecoveryError):
    """The log no longer has the first records that are needed."""

    def __init__(self, needed: int, start_offset: int, of: str) -> None:
        super().__init__(
            f"{of} needs the log from offset {needed}, but the log begins at {start_offset}: records between them are "
            f"gone. Keep records until a snapshot covers them: trim after a snapshot, or a longer retention.ms"
        )
        self.needed = needed
        self.start_offset = start_offset


class AheadOfLogError(RecoveryError):
    """A state or a snapshot has records that the log does not have: they are not of one history."""

    def __init__(self, next_offset: int, end_offset: int, of: str) -> None:
        super().__init__(
            f"{of} is at offset {next_offset}, and the log ends at {end_offset}: it is another log, or it has lost "
            "records. Name the right log, or begin without this state"
        )


class PointNotReachedError(RecoveryError):
    """The log has ended, and the point in time that was asked for did not come."""


class DivergedError(RecoveryError):
    """The state that was replayed is not the state that the writer had at this place of the log."""

    def __init__(self, offset: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"the state at offset {offset} has the checksum {found.hex()}, and the writer had {expected.hex()}: "
            "the log was applied differently, or not to the same state"
        )
        self.offset = offset


class WorkerFailedError(RecoveryError):
    """A process that replays a part of the log has died or cannot go on. The state is as it was before that part."""

    def __init__(self, offset: int, until: int, why: str) -> None:
        super().__init__(
            f"a worker that replays the log from offset {offset} up to {until} has failed: {why}. The state has "
            "nothing of what is after that offset: recover again, or with workers=1"
        )
        self.offset = offset


class NotLeadingError(RecoveryError):
    """This leader has stopped: another one has taken over, or the fate of a write is not known."""
