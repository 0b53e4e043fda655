"""Recovery from a log: snapshots, replay to any point, and followers that take over from a failed leader.

    from ottla.recovery import KafkaLog, Point, RowTables, SnapshotStore, recover

    tables = RowTables()
    recovered = await recover(KafkaLog("127.0.0.1:9092", "orders-wal"), tables, snapshots=SnapshotStore("snapshots"))

The log is any object with `tail`, `read_chunks` and `follow`: an `ottla.wal.Log`, a `KafkaLog`, or one of your own.
"""

from ottla.recovery.appliers import Applier, ByKeyApplier, Position, RowTables
from ottla.recovery.entries import Change, Kind, delete, put, statement, transaction_entries
from ottla.recovery.errors import (
    AheadOfLogError,
    DamagedEntryError,
    DamagedSnapshotError,
    DivergedError,
    LogTrimmedError,
    NotLeadingError,
    PointNotReachedError,
    RecoveryError,
    WorkerFailedError,
)
from ottla.recovery.kafka_log import KafkaLog
from ottla.recovery.log_trim import trim_log
from ottla.recovery.logs import ReadableLog, WritableLog
from ottla.recovery.points import END, Point
from ottla.recovery.progress import Progress, progress_bar
from ottla.recovery.recover import Recovered, recover
from ottla.recovery.replayer import Replayer
from ottla.recovery.replica import Follower, Leader, lead
from ottla.recovery.snapshots import Snapshot, SnapshotStore
from ottla.recovery.sqlite_appliers import SqliteApplier

__all__ = [
    "END",
    "AheadOfLogError",
    "Applier",
    "ByKeyApplier",
    "Change",
    "DamagedEntryError",
    "DamagedSnapshotError",
    "DivergedError",
    "Follower",
    "KafkaLog",
    "Kind",
    "Leader",
    "LogTrimmedError",
    "NotLeadingError",
    "Point",
    "PointNotReachedError",
    "Position",
    "Progress",
    "ReadableLog",
    "Recovered",
    "RecoveryError",
    "Replayer",
    "RowTables",
    "Snapshot",
    "SnapshotStore",
    "SqliteApplier",
    "WorkerFailedError",
    "WritableLog",
    "delete",
    "lead",
    "progress_bar",
    "put",
    "recover",
    "statement",
    "transaction_entries",
    "trim_log",
]
