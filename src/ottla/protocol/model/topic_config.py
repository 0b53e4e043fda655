"""The configuration of a topic: Kafka's names and defaults, and Ottla's own settings such as `ottla.durability`.

A value comes from the topic's own overrides, otherwise from the broker (under the broker's name for it, such as
`log.retention.ms`), otherwise from the default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ottla.protocol.model.config_keys import (
    LONG_MAX,
    ConfigKey,
    ConfigType,
    OneOf,
    Range,
    SpecialValueOr,
    Synonym,
    parse_value,
    table,
    unknown_name,
)
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.replication_keys import THROTTLED_REPLICAS
from ottla.protocol.model.tiered_storage_keys import TIERED_STORAGE

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

SEGMENT_BYTES_MIN = 1024
"""Kafka 4 requires 1 MiB. Small segments make a retention of seconds or few bytes exact, so Ottla accepts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The parsed settings of a topic."""

    archive_group: str
    """Empty if retention waits for no group."""
    archive_wait_max_bytes: int
    archive_wait_max_ms: int
    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    durability: Durability
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: frozenset[str]
    index_interval_bytes: int
    leader_replication_throttled_replicas: frozenset[str]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    """-1 keeps everything."""
    retention_ms: int
    """-1 keeps everything."""
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def is_compacted(self) -> bool:
        """True if `cleanup.policy` contains `compact`, alone or with `delete`."""
        return "compact" in self.cleanup_policy

    @property
    def compaction_lag_ms_max(self) -> int:
        """How long a record may remain uncompacted; without compaction there is no limit."""
        return self.max_compaction_lag_ms if self.is_compacted else LONG_MAX

    @property
    def is_log_append_time(self) -> bool:
        """True if the broker sets timestamps with its own clock."""
        return self.message_timestamp_type == "LogAppendTime"


TOPIC_CONFIGS: Mapping[str, ConfigKey] = MappingProxyType(
    table(
        [
            ConfigKey(
                "cleanup.policy",
                ConfigType.LIST,
                "delete",
                "How old records are removed: delete removes whole segments by age and size, compact keeps the last "
                "record of each key. Both may be given.",
                OneOf(("compact", "delete")),
                (Synonym("log.cleanup.policy"),),
            ),
            ConfigKey(
                "compression.gzip.level",
                _INT,
                "-1",
                "The compression level for batches that the broker compresses with gzip; -1 is the library's default.",
                SpecialValueOr(-1, Range(1, 9)),
                (Synonym("compression.gzip.level"),),
            ),
            ConfigKey(
                "compression.lz4.level",
                _INT,
                "9",
                "The compression level for batches that the broker compresses with lz4.",
                Range(1, 17),
                (Synonym("compression.lz4.level"),),
            ),
            ConfigKey(
                "compression.type",
                _STRING,
                "producer",
                "The codec of stored batches: producer keeps them as the producer sent them, any other value "
                "recompresses them.",
                OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
                (Synonym("compression.type"),),
            ),
            ConfigKey(
                "compression.zstd.level",
                _INT,
                "3",
                "The compression level for batches that the broker compresses with zstd.",
                Range(-131072, 22),
                (Synonym("compression.zstd.level"),),
            ),
            ConfigKey(
                "delete.retention.ms",
                _LONG,
                "86400000",
                "How long a compacted topic keeps the tombstone of a deleted key.",
                Range(0),
                (Synonym("log.cleaner.delete.retention.ms"),),
            ),
            ConfigKey(
                "ottla.archive.group",
                _STRING,
                "",
                "The consumer group that retention waits for: an expired segment is deleted only after the group has "
                "committed all of it. `ottla pipeline archive run --group` commits the records that it has archived. "
                "If this is empty, retention waits for no group. DeleteRecords never waits.",
            ),
            ConfigKey(
                "ottla.archive.wait.max.bytes",
                _LONG,
                str(10 * 1024**3),
                "Maximum number of bytes of a partition that may wait for ottla.archive.group. Above it, the oldest "
                "segments are deleted although they are not archived, and an error is logged; -1 means no limit.",
                Range(-1),
            ),
            ConfigKey(
                "ottla.archive.wait.max.ms",
                _LONG,
                str(168 * _HOUR_MS),
                "Maximum time that an expired segment waits for ottla.archive.group. After it, the segment is "
                "deleted although it is not archived, and an error is logged; -1 means no limit. The time restarts "
                "when the leader changes.",
                Range(-1),
            ),
            ConfigKey(
                "ottla.durability",
                _STRING,
                "disk",
                "What an acknowledgement means: disk (the record is on stable storage), cache (it is in the page "
                "cache, as in Kafka) or memory (it is never written to a disk). It cannot be changed after the topic "
                "is created.",
                OneOf(tuple(Durability)),
                (Synonym("ottla.durability"),),
                dynamic=False,
            ),
            ConfigKey(
                "file.delete.delay.ms",
                _LONG,
                "60000",
                "How long the files of a deleted segment are kept for readers that still use them.",
                Range(0),
                (Synonym("log.segment.delete.delay.ms"),),
            ),
            ConfigKey(
                "flush.messages",
                _LONG,
                str(LONG_MAX),
                "In the cache class, the log is synced after this many records. The disk class always syncs first.",
                Range(1),
                (Synonym("log.flush.interval.messages"),),
            ),
            ConfigKey(
                "flush.ms",
                _LONG,
                str(LONG_MAX),
                "In the cache class, the log is synced at least this often while it has unsynced records.",
                Range(0),
                (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms", default=str(LONG_MAX))),
            ),
            ConfigKey(
                "index.interval.bytes",
                _INT,
                "4096",
                "Number of bytes of records between two entries in the offset index.",
                Range(0),
                (Synonym("log.index.interval.bytes"),),
            ),
            ConfigKey(
                "max.compaction.lag.ms",
                _LONG,
                str(LONG_MAX),
                "Maximum time that a record of a compacted topic remains uncompacted.",
                Range(1),
                (Synonym("log.cleaner.max.compaction.lag.ms"),),
            ),
            ConfigKey(
                "max.message.bytes",
                _INT,
                "1048588",
                "Maximum size of a record batch that is accepted, as encoded on the wire.",
                Range(0),
                (Synonym("message.max.bytes"),),
            ),
            ConfigKey(
                "message.timestamp.after.max.ms",
                _LONG,
                "3600000",
                "How far a record's timestamp may be ahead of the broker's clock (CreateTime).",
                Range(0),
                (Synonym("log.message.timestamp.after.max.ms"),),
            ),
            ConfigKey(
                "message.timestamp.before.max.ms",
                _LONG,
                str(LONG_MAX),
                "How far a record's timestamp may be behind the broker's clock (CreateTime).",
                Range(0),
                (Synonym("log.message.timestamp.before.max.ms"),),
            ),
            ConfigKey(
                "message.timestamp.type",
                _STRING,
                "CreateTime",
                "Which clock sets the timestamp of a record: the producer's (CreateTime) or the broker's "
                "(LogAppendTime).",
                OneOf(("CreateTime", "LogAppendTime")),
                (Synonym("log.message.timestamp.type"),),
            ),
            ConfigKey(
                "min.cleanable.dirty.ratio",
                ConfigType.DOUBLE,
                "0.5",
                "Compaction starts when this fraction of the log is uncompacted.",
                Range(0, 1),
                (Synonym("log.cleaner.min.cleanable.ratio"),),
            ),
            ConfigKey(
                "min.compaction.lag.ms",
                _LONG,
                "0",
                "Minimum time that a record remains uncompacted.",
                Range(0),
                (Synonym("log.cleaner.min.compaction.lag.ms"),),
            ),
            ConfigKey(
                "min.insync.replicas",
                _INT,
                None,
                "Number of replicas that must have a record before a produce with acks=all is acknowledged. The "
                "default is a majority of the replication factor.",
                Range(1),
                (Synonym("min.insync.replicas"),),
            ),
            ConfigKey(
                "preallocate",
                _BOOLEAN,
                "false",
                "Whether to allocate the whole of a new segment on disk when it is created.",
                None,
                (Synonym("log.preallocate"),),
            ),
            ConfigKey(
                "retention.bytes",
                _LONG,
                "-1",
                "The oldest segments of a partition are deleted while it is larger than this; -1 means no limit.",
                Range(-1),
                (Synonym("log.retention.bytes"),),
            ),
            ConfigKey(
                "retention.ms",
                _LONG,
                str(168 * _HOUR_MS),
                "Segments whose newest record is older than this are deleted; -1 means no limit. Times of a few "
                "seconds are possible.",
                Range(-1),
                (
                    Synonym("log.retention.ms"),
                    Synonym("log.retention.minutes", _MINUTE_MS),
                    Synonym("log.retention.hours", _HOUR_MS, "168"),
                ),
            ),
            ConfigKey(
                "segment.bytes",
                _INT,
                "1073741824",
                "When a segment reaches this size, it is closed and a new one is started.",
                Range(SEGMENT_BYTES_MIN),
                (Synonym("log.segment.bytes"),),
            ),
            ConfigKey(
                "segment.index.bytes",
                _INT,
                "10485760",
                "Maximum size of a segment's index; when the index is full, a new segment is started.",
                Range(4),
                (Synonym("log.index.size.max.bytes"),),
            ),
            ConfigKey(
                "segment.jitter.ms",
                _LONG,
                "0",
                "Maximum random time that is subtracted from segment.ms, so that segments do not all roll at once.",
                Range(0),
                (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS, "0")),
            ),
            ConfigKey(
                "segment.ms",
                _LONG,
                str(168 * _HOUR_MS),
                "When a segment reaches this age, it is closed and a new one is started, so that retention can "
                "delete it.",
                Range(1),
                (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS, "168")),
            ),
            ConfigKey(
                "unclean.leader.election.enable",
                _BOOLEAN,
                "false",
                "Whether a replica that lacks acknowledged records may become leader when no other replica is left. "
                "This loses data.",
                None,
                (Synonym("unclean.leader.election.enable"),),
            ),
            *THROTTLED_REPLICAS,
            *TIERED_STORAGE,
        ]
    )
)


def parse_topic_config(
    overrides: Mapping[str, str],
    broker_defaults: Mapping[str, str] = MappingProxyType({}),
    *,
    replication_factor: int = 1,
) -> TopicConfig | Refused:
    """Parses a topic's settings from its overrides and the broker's settings (by the broker's names)."""
    for name in overrides:
        if name not in TOPIC_CONFIGS:
            return unknown_name("topic", name, TOPIC_CONFIGS)
    values: dict[str, Any] = {}
    for key in TOPIC_CONFIGS.values():
        text = overrides.get(key.name)
        if text is None:
            text = default_of(key, broker_defaults, replication_factor)
        value = parse_value(key, text)
        if isinstance(value, Refused):
            return value
        if key not in TIERED_STORAGE:
            values[key.attribute] = value
    values["durability"] = Durability(values["durability"])
    return _check_together(TopicConfig(**values))


def default_of(key: ConfigKey, broker_defaults: Mapping[str, str], replication_factor: int = 1) -> str:
    """Returns the value of a setting without an override: the broker's value, or the table's default."""
    for synonym in key.synonyms:
        text = broker_defaults.get(synonym.name)
        if text is not None:
            return scaled(text, synonym.factor)
    if key.default is None:
        return str(replication_factor // 2 + 1)
    return key.default


def scaled(text: str, factor: int) -> str:
    """Converts a broker's value to the unit of the topic setting (hours to milliseconds). -1 stays -1, which means no
    limit in any unit."""
    if factor == 1:
        return text
    try:
        number = int(text)
    except ValueError:
        return text
    return str(number * factor if number >= 0 else number)


def _check_together(config: TopicConfig) -> TopicConfig | Refused:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        return Refused(
            ErrorCode.invalid_config,
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is larger than max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms}).",
        )
    if config.durability is Durability.MEMORY and config.is_compacted:
        return Refused(ErrorCode.invalid_config, "A topic of the memory class cannot be compacted.")
    if config.durability is Durability.MEMORY and config.archive_group:
        return Refused(
            ErrorCode.invalid_config,
            "A topic of the memory class cannot wait for an archive; ottla.archive.group needs the class "
            "disk or cache.",
        )
    return config
