"""The configuration of the broker: Kafka's names where Kafka has one, names that begin with `ottla.` for Ottla's own.

The defaults of topic settings are broker settings too (`log.retention.ms`, `log.segment.bytes`...): they are part of
`BROKER_CONFIGS`, and `BrokerConfig.given` keeps those that were set, for `parse_topic_config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ottla.protocol.model.access_keys import ACCESS_KEYS
from ottla.protocol.model.back_pressure_keys import BACK_PRESSURE_LIMITS
from ottla.protocol.model.config_keys import ConfigKey, ConfigType, OneOf, Range, Synonym, parse_value, table
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.foreign_settings import refusal
from ottla.protocol.model.group_keys import ASSIGNORS, GROUP_KEYS
from ottla.protocol.model.replication_keys import DIRECTORY_MOVE_RATE, THROTTLED_RATES
from ottla.protocol.model.security_keys import SECURITY_KEYS, SERVER_KEYS, listener_key
from ottla.protocol.model.topic_config import TOPIC_CONFIGS, parse_topic_config
from ottla.protocol.model.transaction_keys import TRANSACTION_KEYS

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG

_MIB = 1 << 20

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
"""Also Kafka's default, whether named or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The parsed settings of a broker."""

    allow_everyone_if_no_acl_found: bool
    authorizer_class_name: str | None
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    authentication_timeout_ms: int
    broker_rack: str | None
    broker_session_timeout_ms: int
    connections_max_idle_ms: int
    coordination: str | None
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    flush_interval_ms: int
    follower_replication_throttled_rate: int
    frame_stall_ms: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    host: str | None
    host_shared: bool
    journal_bytes: int
    journal_file_bytes: int
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    leader_replication_throttled_rate: int
    log_cleaner_backoff_ms: int
    log_cleaner_cpu_percent: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_max_bytes_per_second: float
    log_retention_check_interval_ms: int
    max_connections: int
    max_incremental_fetch_session_cache_slots: int
    max_inflight_per_connection: int
    max_request_partition_size_limit: int
    memory_max_bytes: int
    message_max_bytes: int
    metrics_host: str
    metrics_port: int | None
    node_id: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    sasl_server_max_receive_size: int
    socket_request_max_bytes: int
    super_users: str | None
    tail_cache_bytes: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int
    unacknowledged_max_bytes: int
    unauthenticated_connections_max: int
    unwritten_max_bytes: int
    wal_advertised_port: int | None
    wal_host: str | None
    wal_port: int | None
    given: Mapping[str, str]
    """The settings that were set, by name; all others have their default. Pass it to `parse_topic_config` as the
    broker's defaults."""


_OWN_KEYS = [
    ConfigKey(
        "auto.create.topics.enable",
        _BOOLEAN,
        "true",
        "Whether to create a topic when a client first requests it.",
        dynamic=False,
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        "true",
        "Whether leadership returns automatically to the preferred leader of each partition, for example after a "
        "restart.",
        dynamic=False,
    ),
    ConfigKey("broker.rack", _STRING, None, "The rack or zone of this broker.", dynamic=False),
    ConfigKey(
        "broker.session.timeout.ms",
        _LONG,
        "6000",
        "How long a broker of a cluster may be silent before it is considered dead and other brokers take over as "
        "leaders.",
        Range(500),
        dynamic=False,
    ),
    ConfigKey(
        "connections.max.idle.ms",
        _LONG,
        "600000",
        "A connection without a request for this long is closed; -1 means no limit.",
        Range(-1),
        dynamic=False,
    ),
    ConfigKey(
        "default.replication.factor",
        _INT,
        "1",
        "The replication factor of topics that are created without one.",
        Range(1),
    ),
    ConfigKey("delete.topic.enable", _BOOLEAN, "true", "Whether clients may delete topics.", dynamic=False),
    ConfigKey(
        "fetch.max.bytes",
        _INT,
        "57671680",
        "Maximum number of bytes of records in one fetch response, whatever the client requests.",
        Range(1024),
        dynamic=False,
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        "300",
        "How often the controller looks for partitions that are not led by their preferred leader.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        _INT,
        "10",
        "When other brokers lead more than this percentage of the partitions that a broker should lead, the broker "
        "gets all of them back.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        _LONG,
        "15000",
        "How often the broker looks for logs to compact.",
        Range(1),
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        str(128 * _MIB),
        "Maximum memory for the keys of the log that is being compacted. A key takes about 30 bytes; a log with more "
        "keys than fit is compacted in several passes.",
        Range(_MIB),
    ),
    ConfigKey(
        "log.cleaner.enable",
        _BOOLEAN,
        "true",
        "Whether topics with cleanup.policy=compact are compacted. If it is false, they only grow.",
        dynamic=False,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "1.7976931348623157E308",
        "Maximum number of bytes that compaction reads and writes per second, in total.",
        Range(1),
    ),
    ConfigKey(
        "log.retention.check.interval.ms",
        _LONG,
        "300000",
        "Maximum time between two checks for segments to delete. The broker also checks when a segment is due.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "max.connections",
        _INT,
        "10000",
        "Maximum number of open connections; further connections are closed immediately.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        "1000",
        "Maximum number of fetch sessions that the broker keeps.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "max.request.partition.size.limit",
        _INT,
        "2000",
        "Maximum number of partitions in one DescribeTopicPartitions response.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "node.id",
        _INT,
        "1",
        "The id of this broker, as clients see it.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "num.partitions", _INT, "1", "The number of partitions of topics that are created without one.", Range(1)
    ),
    ConfigKey(
        "ottla.coordination",
        _STRING,
        None,
        "The coordination store of the cluster: sqlite:DIRECTORY on one machine, etcd:HOST:PORT,... or "
        "zookeeper:HOST:PORT,..., followed by /NAME if several clusters share the store. Without it, the broker runs "
        "standalone.",
        dynamic=False,
    ),
    ConfigKey(
        "ottla.flush.interval.ms",
        _LONG,
        "5000",
        "How often written segments are synced, so that their journal space can be reused.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.frame.stall.ms",
        _LONG,
        "30000",
        "A connection that has sent part of a request and then nothing for this long is closed.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.host",
        _STRING,
        None,
        "The machine that this broker runs on; two replicas of a partition are never placed on the same machine. The "
        "default is the machine's host name.",
        dynamic=False,
    ),
    ConfigKey(
        "ottla.host.shared",
        _BOOLEAN,
        "false",
        "Whether several replicas of a partition may be placed on one machine, as in a cluster for trials.",
        dynamic=False,
    ),
    ConfigKey(
        "ottla.journal.bytes",
        _LONG,
        str(256 * _MIB),
        "The size of the journal. While the journal is full, producers to topics of the disk class wait.",
        Range(_MIB),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.journal.file.bytes",
        _LONG,
        str(8 * _MIB),
        "The size of each of the journal's recycled files.",
        Range(64 * 1024),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.log.cleaner.cpu.percent",
        _INT,
        "25",
        "Maximum percentage of one core that compaction uses; it works in short slices and pauses between them.",
        Range(1, 100),
    ),
    ConfigKey(
        "ottla.max.inflight.requests.per.connection",
        _INT,
        "1000",
        "Maximum number of unanswered requests on one connection; above it, the broker stops reading from the "
        "connection.",
        Range(1),
        dynamic=False,
        attribute_override="max_inflight_per_connection",
    ),
    ConfigKey(
        "ottla.memory.max.bytes",
        _LONG,
        str(1024 * _MIB),
        "Maximum total size of all logs of the memory class; produce requests beyond it are rejected.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.metrics.host",
        _STRING,
        "127.0.0.1",
        "The address that the metrics page for Prometheus listens on. Anyone who can reach the page can read it, "
        "because it requires no authentication.",
        dynamic=False,
    ),
    ConfigKey(
        "ottla.metrics.port",
        _INT,
        None,
        "The port of the metrics page for Prometheus, `/metrics`; 0 chooses a free port, which the broker logs. "
        "Without it, the broker serves no metrics.",
        Range(0, 65535),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.tail.cache.bytes",
        _LONG,
        str(32 * _MIB),
        "Maximum memory for the newest records of all partitions, from which caught-up readers are served. The "
        "broker uses only as much of it as they need.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.wal.advertised.port",
        _INT,
        None,
        "The port of the append stream that is advertised to clients, if it differs from the one that the broker "
        "listens on, as behind a proxy or in a container.",
        Range(1, 65535),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.wal.host",
        _STRING,
        None,
        "The address that the append stream listens on; the default is the broker's own address. Clients are given "
        "the broker's advertised host.",
        dynamic=False,
    ),
    ConfigKey(
        "ottla.wal.port",
        _INT,
        None,
        "The port of the append stream, the gRPC service for write-ahead logs; 0 chooses a free port, which the "
        "broker logs. Without it, the broker serves no append stream.",
        Range(0, 65535),
        dynamic=False,
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        _INT,
        "86400000",
        "How long the broker keeps the state of an idle idempotent producer.",
        Range(1),
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        _LONG,
        "10000",
        "A follower that has not caught up for this long is removed from the in-sync replicas, so that "
        "acknowledgements no longer wait for it.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "replica.selector.class",
        _STRING,
        None,
        "Which replica consumers read from, as the name of a Kafka class. With RackAwareReplicaSelector, a consumer "
        "that sets client.rack reads from an in-sync follower in its rack; with LeaderSelector, or if this is not "
        "set, consumers read from the leader.",
        OneOf((RACK_AWARE_SELECTOR, LEADER_SELECTOR)),
        dynamic=False,
    ),
    ConfigKey(
        "socket.request.max.bytes",
        _INT,
        "104857600",
        "Maximum size of a request; a connection that sends a larger one is closed.",
        Range(1),
        dynamic=False,
    ),
    *ACCESS_KEYS,
    *GROUP_KEYS,
    *THROTTLED_RATES,
    *BACK_PRESSURE_LIMITS,
    *TRANSACTION_KEYS,
    *SERVER_KEYS,
]


def _topic_default_keys() -> Iterator[ConfigKey]:
    """Yields the broker setting for each topic setting: same type and check, with the broker's name."""
    for key in TOPIC_CONFIGS.values():
        for synonym in key.synonyms:
            is_first = synonym is key.synonyms[0]
            yield ConfigKey(
                synonym.name,
                key.type if synonym.factor == 1 else _INT,
                key.default if len(key.synonyms) == 1 else synonym.default,
                _synonym_doc(key, synonym),
                key.check if synonym.factor == 1 else Range(-1),
                synonyms=key.synonyms if len(key.synonyms) > 1 else (),
                dynamic=key.dynamic and is_first,
            )


def _synonym_doc(key: ConfigKey, synonym: Synonym) -> str:
    unit = {1: "", 60_000: ", in minutes", 3_600_000: ", in hours"}[synonym.factor]
    return f"The default of the topic configuration {key.name}{unit}."


BROKER_CONFIGS: Mapping[str, ConfigKey] = MappingProxyType(
    table([*_OWN_KEYS, *SECURITY_KEYS, DIRECTORY_MOVE_RATE, *_topic_default_keys()])
)


def find_key(name: str) -> ConfigKey | None:
    """Returns the definition of a broker setting, or of a setting of one listener."""
    return BROKER_CONFIGS.get(name) or listener_key(name)


def parse_broker_config(given: Mapping[str, str]) -> BrokerConfig | Refused:
    """Parses the broker's settings. Every value is checked, even those that only topics use. Settings that Ottla does
    not have are dropped if a broker may start with them (`foreign_settings`)."""
    for name, text in given.items():
        key = find_key(name)
        problem = refusal(name, text, BROKER_CONFIGS) if key is None else parse_value(key, text)
        if isinstance(problem, Refused):
            return problem
    given = {name: text for name, text in given.items() if find_key(name) is not None}
    topics = parse_topic_config({}, given)
    if isinstance(topics, Refused):
        return topics
    values: dict[str, Any] = {"message_max_bytes": topics.max_message_bytes}
    for key in _OWN_KEYS:
        own_text = given.get(key.name, key.default)
        values[key.attribute] = None if own_text is None else parse_value(key, own_text)
    # The order matters: the first one is the default.
    values["group_consumer_assignors"] = _words(given.get(ASSIGNORS, BROKER_CONFIGS[ASSIGNORS].default or ""))
    if values["group_min_session_timeout_ms"] > values["group_max_session_timeout_ms"]:
        return Refused(
            ErrorCode.invalid_config, "group.min.session.timeout.ms is larger than group.max.session.timeout.ms."
        )
    if values["journal_file_bytes"] > values["journal_bytes"]:
        return Refused(ErrorCode.invalid_config, "ottla.journal.file.bytes is larger than ottla.journal.bytes.")
    return BrokerConfig(**values, given=MappingProxyType(given))


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in (part.strip() for part in text.split(",")) if word))


def with_overrides(config: BrokerConfig, dynamic: Mapping[str, str]) -> BrokerConfig | Refused:
    """Returns the configuration with the values set while the broker runs, which take precedence over those at
    start-up."""
    parsed = parse_broker_config({**config.given, **dynamic})
    if isinstance(parsed, Refused):
        return parsed
    return replace(parsed, given=MappingProxyType({**config.given, **dynamic}))
