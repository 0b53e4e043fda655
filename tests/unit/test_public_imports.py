"""Names that user programs import. A move inside the package must not change them."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

import pytest

PUBLIC = {
    "ottla.client": (
        "Admin",
        "BrokerRefusedError",
        "BufferFullError",
        "ClientClosedError",
        "ClientError",
        "CommitFailedError",
        "ConnectionLostError",
        "Consumer",
        "ConsumerRecord",
        "CorruptBatchError",
        "DeliveryError",
        "DeliveryTimedOutError",
        "DeserializationError",
        "FencedInstanceError",
        "GroupNotEmptyError",
        "HIGH_WATERMARK",
        "NoBrokerError",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetOutOfRangeError",
        "PreparedTransaction",
        "PreparedTransactions",
        "Producer",
        "ProducerFencedError",
        "RebalancingError",
        "RecordMetadata",
        "RecordTooLargeError",
        "RequestTimedOutError",
        "SequenceLostError",
        "SerializationError",
        "SyncAdmin",
        "SyncConsumer",
        "SyncProducer",
        "SyncTransaction",
        "TablePart",
        "TopicExistsError",
        "TopicPartition",
        "Transaction",
        "TransactionAbortedError",
        "TransactionStateError",
        "TransactionUnresolvedError",
        "UnknownGroupError",
        "UnknownTopicError",
        "UnknownTransactionalIdError",
        "UnsupportedByBrokerError",
    ),
    "ottla.wal": (
        "Entry",
        "FencedError",
        "InvalidRequestError",
        "Limits",
        "Log",
        "LogClosedError",
        "LogNotFoundError",
        "LogSettings",
        "SyncLog",
        "Tail",
        "TooLargeError",
        "TooMuchInFlightError",
        "TrimmedError",
        "UnavailableError",
        "UnexpectedEndError",
        "UnknownOutcomeError",
        "WalError",
    ),
    "ottla.testing": (
        "Cluster",
        "TopicRefusedError",
    ),
    "ottla.recovery": (
        "AheadOfLogError",
        "Applier",
        "ByKeyApplier",
        "Change",
        "DamagedEntryError",
        "DamagedSnapshotError",
        "DivergedError",
        "END",
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
    ),
    "ottla.connect.sqlite": (
        "NotShippedError",
        "wait_shipped",
    ),
    "ottla.client.errors": (
        "ClientError",
        "TopicExistsError",
    ),
    "ottla.spark.session": (
        "JavaMissingError",
        "new_session",
    ),
    "ottla.spark.registration": ("register",),
    "ottla.spark.pipeline_file": ("Pipeline",),
    "ottla.spark.jobs.archive": ("archive_available",),
    "ottla.spark.jobs.archive_read": ("read_archive",),
    "ottla.spark.jobs.materialize": ("materialize",),
    "ottla.spark.jobs.restore": (
        "AtEnd",
        "AtOffsets",
        "AtTime",
        "restore",
    ),
    "ottla.spark.jobs.tables": ("Table",),
    "ottla.testing.broker_process": ("BrokerProcess",),
    "ottla.testing.cluster_processes": ("ClusterProcesses",),
    "ottla.recovery.entries": ("json_values",),
    "pyspark_ottla": ("DefaultSource",),
}
MODULES_OF_COMMANDS = (
    "ottla.connect.postgres_wal.fetch",
    "ottla.connect.postgres_wal.restore_client",
    "ottla.connect.postgres_wal.restore_server",
)
"""Data directories of PostgreSQL servers name them in restore_command."""


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_importable(module: str) -> None:
    imported = import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(imported, name)] == []


@pytest.mark.parametrize("module", MODULES_OF_COMMANDS)
def test_modules_that_files_of_users_name(module: str) -> None:
    assert hasattr(import_module(module), "main")


def test_entry_points() -> None:
    (plugin,) = (each for each in entry_points(group="pytest11") if each.name == "ottla")
    (program,) = (each for each in entry_points(group="console_scripts") if each.name == "ottla")
    assert plugin.load().__name__ == "ottla.testing.pytest_plugin"
    assert callable(program.load())
