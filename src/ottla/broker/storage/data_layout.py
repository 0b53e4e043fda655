"""The layout of a data directory.

<data>/FORMAT            format version and ids
<data>/checkpoint        how far each log is synced, and from where the journal is replayed
<data>/journal/          the journal's ring
<data>/logs/<topic id>-<partition>/   segments (.log), their indexes (.ottla-index), state
<data>/lost-entries      exists if the journal lost entries of unknown logs, until the cluster was notified
<data>/recycled/         files of expired segments, to be reused for new ones
<data>/rescued/          journal entries of logs that failed, until the logs are opened again
<data>/reserve-*         space reserved for a full disk
<data>/set-aside/        logs that no topic claims: kept, never deleted by the broker
"""

from __future__ import annotations

import re
from uuid import UUID

from ottla.broker.storage.startup.checkpoint import CHECKPOINT_FILE
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId

DELETED_SUFFIX = ".deleted"
_LOG_NAME = re.compile(r"([0-9a-f]{32})-(\d+)(?:-(\d+))?")


class DataLayout:
    """The paths in a data directory."""

    def __init__(self, data_dir: str) -> None:
        self.data_dir = data_dir
        self.checkpoint = f"{data_dir}/{CHECKPOINT_FILE}"
        self.journal = f"{data_dir}/journal"
        self.logs = f"{data_dir}/logs"
        self.lost_entries = f"{data_dir}/lost-entries"
        self.recycled = f"{data_dir}/recycled"
        self.rescued = f"{data_dir}/rescued"
        self.set_aside = f"{data_dir}/set-aside"

    def directory_of(self, key: LogKey) -> str:
        """Returns the directory of a log."""
        return f"{self.logs}/{log_name(key)}"


def log_name(key: LogKey) -> str:
    """Returns a log's directory name. It is based on the topic id (safety: topic-identity): a topic that is deleted and
    recreated is another log."""
    suffix = f"-{key.generation}" if key.generation else ""
    return f"{key.topic_id.hex}-{key.partition}{suffix}"


def key_of_log_name(name: str) -> LogKey | None:
    """Parses the name of a log's directory. None if it is not one."""
    found = _LOG_NAME.fullmatch(name)
    if found is None:
        return None
    topic_id, partition, generation = found.groups()
    return LogKey(TopicId(UUID(hex=topic_id)), PartitionIndex(int(partition)), int(generation or 0))
