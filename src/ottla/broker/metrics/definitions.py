"""All metrics of a broker. The names are stable, because dashboards and alerts depend on them."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.metrics.metric import Metric, counter, gauge, histogram

# -- requests

REQUESTS = counter("requests", "Number of requests that the broker has started to handle.", "api", "version")
REQUEST_ERRORS = counter(
    "request_errors",
    "Number of error codes in responses: one for each partition, topic, group or other item that a response rejects.",
    "api",
    "error",
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    "Time from the start of a request until its response is ready, including all waits (acknowledgements, long "
    "polls, rebalances).",
    "api",
)
PRODUCE_SECONDS = histogram(
    "produce_seconds",
    "Time from the start of a produce request until it is acknowledged: with acks `all` by every in-sync replica, "
    "with `1` by this broker, with `0` until it is appended.",
    "acks",
)
FETCH_SECONDS = histogram(
    "fetch_seconds",
    "Time of fetch requests, by the kind of `reader` (consumer or replica). `waited` is `no` if the first read had "
    "enough data: this shows how fast the broker is. It is `yes` for long polls: this shows how long there was no "
    "new data.",
    "reader",
    "waited",
)
COLD_READS = counter(
    "fetch_cold_reads", "Number of reads for fetches that were served neither from memory nor from the page cache."
)
FETCH_SESSIONS = gauge("fetch_sessions", "Number of incremental fetch sessions that the broker keeps.")
REQUESTS_IN_FLIGHT = gauge("requests_in_flight", "Number of requests that are not answered yet.")
REQUEST_MEMORY = gauge(
    "request_memory_bytes",
    "Bytes of requests that are not handled yet, including requests that have only partly arrived.",
)
BACKLOG = gauge(
    "backlog_bytes", "Bytes that this leader has appended and that not all in-sync replicas have acknowledged yet."
)
BACKLOG_LIMIT = gauge(
    "backlog_limit_bytes", "Size of the backlog above which producers wait; it follows the drain rate."
)
BACKLOG_WAITS = counter(
    "backlog_waits", "Number of produce requests and append streams that had to wait for the backlog."
)
CONNECTIONS_UNAUTHENTICATED = gauge(
    "connections_unauthenticated", "Number of connections in a TLS handshake or before their authentication."
)
HANDSHAKES_FAILED = counter("tls_handshakes_failed", "Number of TLS handshakes that failed or took too long.")
CERTIFICATE_EXPIRES = gauge(
    "tls_certificate_not_after_seconds",
    "Time at which the certificate of a listener expires, in seconds since 1970.",
    "listener",
)
CONNECTIONS = gauge("connections", "Number of open connections of clients and other brokers.")
CONNECTIONS_ACCEPTED = counter("connections_accepted", "Number of connections that were opened.")
CONNECTIONS_REFUSED = counter(
    "connections_refused",
    "Number of connections that were refused because there were too many or no file descriptors were left.",
)

# -- topics

TOPIC_IN_BYTES = counter("topic_in_bytes", "Bytes of record batches that producers wrote to this broker.", "topic")
TOPIC_IN_RECORDS = counter("topic_in_records", "Number of records that producers wrote to this broker.", "topic")
TOPIC_IN_BATCHES = counter("topic_in_batches", "Number of record batches that producers wrote to this broker.", "topic")
TOPIC_FOLLOWED_BYTES = counter(
    "topic_followed_bytes", "Bytes of record batches that this broker copied from leaders.", "topic"
)
TOPIC_FOLLOWED_RECORDS = counter(
    "topic_followed_records", "Number of records that this broker copied from leaders.", "topic"
)
TOPIC_OUT_BYTES = counter(
    "topic_out_bytes", "Bytes of record batches that were read, by the kind of reader.", "topic", "reader"
)
TOPIC_OUT_RECORDS = counter(
    "topic_out_records", "Number of records that were read, by the kind of reader.", "topic", "reader"
)

# -- partitions

_OF_PARTITION = ("topic", "partition")
PARTITION_START = gauge("partition_start_offset", "The first offset of this broker's log.", *_OF_PARTITION)
PARTITION_END = gauge("partition_end_offset", "The offset after the last record of this broker's log.", *_OF_PARTITION)
PARTITION_WATERMARK = gauge(
    "partition_high_watermark", "The offset after the last record that readers can see.", *_OF_PARTITION
)
PARTITION_BYTES = gauge("partition_size_bytes", "Size of this broker's log.", *_OF_PARTITION)
PARTITION_LEADER = gauge("partition_is_leader", "1 if this broker leads the partition, else 0.", *_OF_PARTITION)
PARTITION_EPOCH = gauge(
    "partition_leader_epoch", "The leader epoch, which counts the changes of the leader.", *_OF_PARTITION
)
PARTITION_REPLICAS = gauge(
    "partition_replicas", "Number of replicas that the partition should have. Only leaders report it.", *_OF_PARTITION
)
PARTITION_ISR = gauge(
    "partition_in_sync_replicas", "Number of replicas that are in sync. Only leaders report it.", *_OF_PARTITION
)
PARTITION_STABLE_LAG = gauge(
    "partition_last_stable_offset_lag",
    "Number of offsets between the last stable offset and the high watermark: readers of committed transactions "
    "wait for them, because an earlier transaction is open. Only leaders report it.",
    *_OF_PARTITION,
)
REPLICA_LAG_RECORDS = gauge(
    "replica_lag_records",
    "Number of records that a follower has not acknowledged yet. Only leaders report it.",
    *_OF_PARTITION,
    "replica",
)
REPLICA_LAG_SECONDS = gauge(
    "replica_lag_seconds",
    "Time since a follower was last caught up; 0 if it is caught up now. Only leaders report it.",
    *_OF_PARTITION,
    "replica",
)

# -- the cluster

TOPICS = gauge("topics", "Number of topics in the cluster, as this broker knows it.")
PARTITIONS = gauge("partitions", "Number of partitions that have a replica on this broker.")
LEADERS = gauge("leader_partitions", "Number of partitions that this broker leads.")
UNDER_REPLICATED = gauge(
    "under_replicated_partitions",
    "Number of partitions led by this broker that have fewer in-sync replicas than they should have.",
)
UNDER_MIN_ISR = gauge(
    "under_min_isr_partitions",
    "Number of partitions led by this broker that reject acks=all because fewer than min.insync.replicas are in sync.",
)
OFFLINE = gauge(
    "offline_partitions", "Number of partitions in the cluster that have no leader. Only the controller reports it."
)
REASSIGNING = gauge(
    "reassigning_partitions", "Number of partitions whose replicas are being moved. Only the controller reports it."
)
CONTROLLER = gauge("active_controller", "1 on the broker that is the controller, else 0.")
LIVE_BROKERS = gauge("live_brokers", "Number of registered brokers, as this broker knows it.")
LEASE_HELD = gauge("coordination_lease_held", "1 while this broker holds its lease, and may therefore lead, else 0.")
COORDINATION_REVISION = gauge("coordination_revision", "Revision of the cluster state that this broker has reached.")
COORDINATION_SECONDS = histogram(
    "coordination_seconds", "Time of calls to the coordination store that were answered.", "call"
)
COORDINATION_ERRORS = counter(
    "coordination_errors",
    "Number of calls to the coordination store that failed: `unavailable` (the call had no effect) or `unknown`.",
    "call",
    "error",
)

# -- groups

_OF_GROUP = ("group", "topic", "partition")
GROUPS = gauge("groups", "Number of consumer groups that this broker coordinates, by state.", "state")
GROUP_OFFSET = gauge("group_committed_offset", "The offset from which the group will continue.", *_OF_GROUP)
GROUP_LAG_RECORDS = gauge(
    "group_lag_records",
    "Number of offsets between the committed offset and the end that a reader can reach.",
    *_OF_GROUP,
)
GROUP_LAG_SECONDS = gauge(
    "group_lag_seconds",
    "Age of the first record that the group has not committed; 0 if it has committed everything. It is omitted if "
    "that record has no timestamp.",
    *_OF_GROUP,
)

# -- transactions

TRANSACTIONS = gauge(
    "transactions",
    "Number of transactional ids that this broker coordinates, by the state of their transaction.",
    "state",
)
OLDEST_TRANSACTION_SECONDS = gauge(
    "oldest_transaction_seconds",
    "How long the oldest transaction that this broker coordinates has been open; 0 if none is open. A transaction "
    "is open until all its partitions have been notified of its end.",
)
TRANSACTIONS_ENDED = counter(
    "transactions_ended",
    "Number of transactions whose end was decided here, by `outcome` (commit or abort) and `cause`: `producer`, "
    "`timeout`, `new_producer` (another producer started with the transactional id, or an operator fenced the "
    "producer), `restart` (the producer restarted after an error), `operator`.",
    "outcome",
    "cause",
)
HANGING_TRANSACTIONS = gauge(
    "hanging_transactions",
    "Number of transactions that have been open for a minute or more in partitions led by this broker and that no "
    "coordinator will end: `ottla transactions list --hanging` lists them. It is omitted while the coordinators "
    "cannot be reached.",
)

# -- storage

JOURNAL_SYNCS = counter("journal_syncs", "Number of group commits that are on stable storage.")
JOURNAL_SYNC_SECONDS = histogram(
    "journal_sync_seconds", "Time of one durable write to the journal, including its time in the queue."
)
JOURNAL_GROUP_ENTRIES = histogram("journal_group_entries", "Number of batches and other changes in one group commit.")
JOURNAL_WRITTEN_BYTES = counter("journal_written_bytes", "Bytes written to the journal, including headers and padding.")
JOURNAL_BYTES = gauge("journal_size_bytes", "Disk space that the journal's files take.")
JOURNAL_USED_BYTES = gauge("journal_used_bytes", "Bytes of the journal that cannot be overwritten yet.")
JOURNAL_FAILED = gauge(
    "journal_failed",
    "1 after a failed write to the journal, since which logs of the class disk accept no more records, else 0.",
)
LOG_BYTES = gauge("log_bytes", "Total size of this broker's logs, by durability.", "durability")
FAILED_LOGS = gauge("failed_logs", "Number of logs that accept no more records after a disk error.")
DISK_FULL = gauge("disk_full", "1 while writes are rejected because the disk is full, else 0.")
DISK_FREE_BYTES = gauge("disk_free_bytes", "Free space of the file system that holds the data directory.")
DISK_BYTES = gauge("disk_size_bytes", "Size of the file system that holds the data directory.")
DISK_QUEUE = gauge("disk_queue_requests", "Number of disk operations that are waiting or running, by queue.", "queue")
MEMORY_CLASS_BYTES = gauge("memory_class_bytes", "Total size of all logs of the class memory.")
MEMORY_CLASS_LIMIT_BYTES = gauge(
    "memory_class_limit_bytes", "Maximum total size of all logs of the class memory (`ottla.memory.max.bytes`)."
)
TAIL_CACHE_BYTES = gauge(
    "tail_cache_bytes", "Size of the newest batches of all logs, from which caught-up readers are served."
)
COMPACTIONS = counter(
    "compactions",
    "Number of compactions that ended, by outcome: `done`, `void` (the log was truncated or deleted meanwhile), "
    "`no_space`, `failed`.",
    "outcome",
)
COMPACTION_REMOVED_RECORDS = counter("compaction_removed_records", "Number of records that compaction removed.")
COMPACTION_RECLAIMED_BYTES = counter("compaction_reclaimed_bytes", "Bytes of disk space that compaction freed.")

ARCHIVE_WAITING_BYTES = gauge(
    "archive_waiting_bytes",
    "Expired bytes that the leader keeps for the archive, for topics with `ottla.archive.group`. The value "
    "grows to `ottla.archive.wait.max.bytes` while the archive makes no progress.",
    "topic",
    "partition",
)
DELETED_UNARCHIVED_RECORDS = counter(
    "deleted_unarchived_records",
    "Number of offsets that retention deleted although `ottla.archive.group` had not archived them, because a "
    "limit was reached.",
    "topic",
)

# -- the process

BUILD_INFO = gauge(
    "build_info", "Always 1; the labels hold the versions and the cluster id.", "version", "python", "cluster"
)
START_TIME = gauge("start_time_seconds", "Time at which the broker started to serve, in seconds since 1970.")
CPU_SECONDS = counter("process_cpu_seconds", "User and system CPU time of the process.")
RESIDENT_BYTES = gauge("process_resident_bytes", "Resident memory of the process.")
OPEN_FILES = gauge("process_open_files", "Number of open file descriptors.")
OPEN_FILES_LIMIT = gauge("process_open_files_limit", "Maximum number of open file descriptors.")
GC_COLLECTIONS = counter("gc_collections", "Number of runs of Python's garbage collector.", "generation")
GC_COLLECTED = counter("gc_collected_objects", "Number of objects that the garbage collector freed.", "generation")
LOOP_DELAY_SECONDS = histogram(
    "event_loop_delay_seconds", "How late a timer of the broker fires, which is how long requests wait for one another."
)
SCRAPE_SECONDS = gauge("scrape_seconds", "Time it took to render this page, in slices.")

SECTIONS: dict[str, list[Metric]] = {
    "Requests": [
        *(REQUESTS, REQUEST_ERRORS, REQUEST_SECONDS, PRODUCE_SECONDS, FETCH_SECONDS, COLD_READS, FETCH_SESSIONS),
        *(REQUESTS_IN_FLIGHT, REQUEST_MEMORY, BACKLOG, BACKLOG_LIMIT, BACKLOG_WAITS),
        *(CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_REFUSED),
        *(CONNECTIONS_UNAUTHENTICATED, HANDSHAKES_FAILED, CERTIFICATE_EXPIRES),
    ],
    "Topics": [
        *(TOPIC_IN_BYTES, TOPIC_IN_RECORDS, TOPIC_IN_BATCHES, TOPIC_FOLLOWED_BYTES, TOPIC_FOLLOWED_RECORDS),
        *(TOPIC_OUT_BYTES, TOPIC_OUT_RECORDS),
    ],
    "Partitions": [
        *(PARTITION_START, PARTITION_END, PARTITION_WATERMARK, PARTITION_BYTES, PARTITION_LEADER, PARTITION_EPOCH),
        *(PARTITION_REPLICAS, PARTITION_ISR, PARTITION_STABLE_LAG, REPLICA_LAG_RECORDS, REPLICA_LAG_SECONDS),
    ],
    "The cluster": [
        *(TOPICS, PARTITIONS, LEADERS, UNDER_REPLICATED, UNDER_MIN_ISR, OFFLINE, REASSIGNING, CONTROLLER, LIVE_BROKERS),
        *(LEASE_HELD, COORDINATION_REVISION, COORDINATION_SECONDS, COORDINATION_ERRORS),
    ],
    "Consumer groups": [GROUPS, GROUP_OFFSET, GROUP_LAG_RECORDS, GROUP_LAG_SECONDS],
    "Transactions": [TRANSACTIONS, OLDEST_TRANSACTION_SECONDS, TRANSACTIONS_ENDED, HANGING_TRANSACTIONS],
    "Storage": [
        *(JOURNAL_SYNCS, JOURNAL_SYNC_SECONDS, JOURNAL_GROUP_ENTRIES, JOURNAL_WRITTEN_BYTES, JOURNAL_BYTES),
        *(JOURNAL_USED_BYTES, JOURNAL_FAILED, LOG_BYTES, FAILED_LOGS, DISK_FULL, DISK_FREE_BYTES, DISK_BYTES),
        *(DISK_QUEUE, MEMORY_CLASS_BYTES, MEMORY_CLASS_LIMIT_BYTES, TAIL_CACHE_BYTES),
        *(COMPACTIONS, COMPACTION_REMOVED_RECORDS, COMPACTION_RECLAIMED_BYTES),
        *(ARCHIVE_WAITING_BYTES, DELETED_UNARCHIVED_RECORDS),
    ],
    "The process": [
        *(BUILD_INFO, START_TIME, CPU_SECONDS, RESIDENT_BYTES, OPEN_FILES, OPEN_FILES_LIMIT, GC_COLLECTIONS),
        *(GC_COLLECTED, LOOP_DELAY_SECONDS, SCRAPE_SECONDS),
    ],
}
"""The metrics in page order."""


def all_metrics() -> Iterator[Metric]:
    """Yields all metrics in page order."""
    for metrics in SECTIONS.values():
        yield from metrics
