"""All metrics of a broker. The names are stable, because dashboards and alerts depend on them."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.metrics.metric import Metric, counter, gauge, histogram

# -- requests

REQUESTS = counter("requests", "Requests that were taken up.", "api", "version")
REQUEST_ERRORS = counter(
    "request_errors",
    "Error codes in replies: one for each partition, topic, group or other thing that a reply refuses.",
    "api",
    "error",
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    "From when a request is taken up to when its reply is ready, all waits included (acknowledgements, long polls, "
    "rebalances).",
    "api",
)
PRODUCE_SECONDS = histogram(
    "produce_seconds",
    "Produce requests, from when they are taken up to their acknowledgement: with acks `all` by every in-sync replica, "
    "with `1` by this broker, with `0` until they are appended.",
    "acks",
)
FETCH_SECONDS = histogram(
    "fetch_seconds",
    "Fetch requests, by who asked (`reader`: consumer or replica). `waited` is `no` if there was enough to answer at "
    "first: that is how fast the broker is. It is `yes` for long polls: that is how long there was nothing new.",
    "reader",
    "waited",
)
COLD_READS = counter("fetch_cold_reads", "Reads of fetches that neither memory nor the page cache had.")
FETCH_SESSIONS = gauge("fetch_sessions", "Incremental fetch sessions that are remembered.")
REQUESTS_IN_FLIGHT = gauge("requests_in_flight", "Requests that are not answered yet.")
REQUEST_MEMORY = gauge("request_memory_bytes", "Of requests that are not handled yet, and of those that only began.")
BACKLOG = gauge("backlog_bytes", "Appended by this leader and not yet acknowledged by all in-sync replicas.")
BACKLOG_LIMIT = gauge("backlog_limit_bytes", "Producers wait while the backlog is larger; follows the drain rate.")
BACKLOG_WAITS = counter("backlog_waits", "Produce requests and append streams that had to wait for the backlog.")
CONNECTIONS = gauge("connections", "Open connections of clients and other brokers.")
CONNECTIONS_ACCEPTED = counter("connections_accepted", "Connections that were opened.")
CONNECTIONS_REFUSED = counter("connections_refused", "Connections that were turned away: too many, or no descriptors.")

# -- topics

TOPIC_IN_BYTES = counter("topic_in_bytes", "Of record batches that producers wrote here.", "topic")
TOPIC_IN_RECORDS = counter("topic_in_records", "Records that producers wrote here.", "topic")
TOPIC_IN_BATCHES = counter("topic_in_batches", "Record batches that producers wrote here.", "topic")
TOPIC_FOLLOWED_BYTES = counter("topic_followed_bytes", "Of record batches that came from leaders.", "topic")
TOPIC_FOLLOWED_RECORDS = counter("topic_followed_records", "Records that came from leaders.", "topic")
TOPIC_OUT_BYTES = counter("topic_out_bytes", "Of record batches that were read, by who read them.", "topic", "reader")
TOPIC_OUT_RECORDS = counter("topic_out_records", "Records that were read, by who read them.", "topic", "reader")

# -- partitions

_OF_PARTITION = ("topic", "partition")
PARTITION_START = gauge("partition_start_offset", "The first offset of the log here.", *_OF_PARTITION)
PARTITION_END = gauge("partition_end_offset", "The offset behind the last record of the log here.", *_OF_PARTITION)
PARTITION_WATERMARK = gauge(
    "partition_high_watermark", "The offset behind the last record that readers see.", *_OF_PARTITION
)
PARTITION_BYTES = gauge("partition_size_bytes", "Of the log here.", *_OF_PARTITION)
PARTITION_LEADER = gauge("partition_is_leader", "1 if this broker leads the partition, else 0.", *_OF_PARTITION)
PARTITION_EPOCH = gauge("partition_leader_epoch", "How often the leader changed.", *_OF_PARTITION)
PARTITION_REPLICAS = gauge("partition_replicas", "Replicas that the partition should have. Of leaders.", *_OF_PARTITION)
PARTITION_ISR = gauge("partition_in_sync_replicas", "Replicas that are in sync. Of leaders.", *_OF_PARTITION)
PARTITION_STABLE_LAG = gauge(
    "partition_last_stable_offset_lag",
    "Offsets between the last stable one and the high watermark: what readers of committed transactions wait for, "
    "because a transaction is open before it. Of leaders.",
    *_OF_PARTITION,
)
REPLICA_LAG_RECORDS = gauge(
    "replica_lag_records", "Records that a follower has not acknowledged yet. Of leaders.", *_OF_PARTITION, "replica"
)
REPLICA_LAG_SECONDS = gauge(
    "replica_lag_seconds",
    "Since a follower last had everything; 0 if it has everything now. Of leaders.",
    *_OF_PARTITION,
    "replica",
)

# -- the cluster

TOPICS = gauge("topics", "Topics of the cluster, as this broker knows it.")
PARTITIONS = gauge("partitions", "Partitions with a replica here.")
LEADERS = gauge("leader_partitions", "Partitions that this broker leads.")
UNDER_REPLICATED = gauge(
    "under_replicated_partitions", "Partitions led here with fewer replicas in sync than they should have."
)
UNDER_MIN_ISR = gauge(
    "under_min_isr_partitions", "Partitions led here that take no acks=all: fewer in sync than min.insync.replicas."
)
OFFLINE = gauge("offline_partitions", "Partitions of the cluster without a leader. Only the controller counts them.")
REASSIGNING = gauge("reassigning_partitions", "Partitions whose replicas are being moved. Of the controller.")
CONTROLLER = gauge("active_controller", "1 on the broker that is the controller, else 0.")
LIVE_BROKERS = gauge("live_brokers", "Brokers that are registered, as this broker knows it.")
LEASE_HELD = gauge("coordination_lease_held", "1 while this broker holds its lease, and so may lead, else 0.")
COORDINATION_REVISION = gauge("coordination_revision", "Of the cluster's state that this broker has come to.")
COORDINATION_SECONDS = histogram("coordination_seconds", "Calls of the coordination store that were answered.", "call")
COORDINATION_ERRORS = counter(
    "coordination_errors",
    "Calls of the coordination store that were not answered: `unavailable` (nothing happened) or `unknown`.",
    "call",
    "error",
)

# -- groups

_OF_GROUP = ("group", "topic", "partition")
GROUPS = gauge("groups", "Consumer groups that this broker coordinates, by state.", "state")
GROUP_OFFSET = gauge("group_committed_offset", "The offset that the group goes on from.", *_OF_GROUP)
GROUP_LAG_RECORDS = gauge(
    "group_lag_records", "Offsets between the committed one and the end that a reader can reach.", *_OF_GROUP
)
GROUP_LAG_SECONDS = gauge(
    "group_lag_seconds",
    "The age of the first record that the group has not committed; 0 if it has committed everything. Left out where "
    "that record has no time.",
    *_OF_GROUP,
)

# -- transactions

TRANSACTIONS = gauge(
    "transactions", "Transactional ids that this broker coordinates, by the state of their transaction.", "state"
)
OLDEST_TRANSACTION_SECONDS = gauge(
    "oldest_transaction_seconds",
    "How long the oldest transaction is open that this broker coordinates, until all its partitions are told of its "
    "end; 0 if none is open.",
)
TRANSACTIONS_ENDED = counter(
    "transactions_ended",
    "Transactions whose end was decided here, by `outcome` (commit or abort) and by whom: `producer`, `timeout`, "
    "`new_producer` (another one began with the transactional id, or an operator fenced the producer), `restart` (the "
    "producer began anew after an error), `operator`.",
    "outcome",
    "cause",
)
HANGING_TRANSACTIONS = gauge(
    "hanging_transactions",
    "Transactions that are open in partitions led here for a minute or more, and that no coordinator will end: `ottla "
    "transactions list --hanging` names them. Left out while the coordinators cannot be asked.",
)

# -- storage

JOURNAL_SYNCS = counter("journal_syncs", "Group commits that are on stable storage.")
JOURNAL_SYNC_SECONDS = histogram(
    "journal_sync_seconds", "One durable write of the journal, with its time in the queue."
)
JOURNAL_GROUP_ENTRIES = histogram("journal_group_entries", "Batches and other changes that one group commit carries.")
JOURNAL_WRITTEN_BYTES = counter("journal_written_bytes", "With headers and padding.")
JOURNAL_BYTES = gauge("journal_size_bytes", "What the journal's files take on the disk.")
JOURNAL_USED_BYTES = gauge("journal_used_bytes", "What of the journal cannot be overwritten yet.")
JOURNAL_FAILED = gauge("journal_failed", "1 after a failed write: logs of the class disk take nothing more, else 0.")
LOG_BYTES = gauge("log_bytes", "Of all logs here, by durability.", "durability")
FAILED_LOGS = gauge("failed_logs", "Logs that take nothing more after a disk error.")
DISK_FULL = gauge("disk_full", "1 while writes are refused because the disk is full, else 0.")
DISK_FREE_BYTES = gauge("disk_free_bytes", "Of the file system with the data directory.")
DISK_BYTES = gauge("disk_size_bytes", "Of the file system with the data directory.")
DISK_QUEUE = gauge("disk_queue_requests", "Disk work that waits or runs, by queue.", "queue")
MEMORY_CLASS_BYTES = gauge("memory_class_bytes", "Of all logs of the class memory.")
MEMORY_CLASS_LIMIT_BYTES = gauge("memory_class_limit_bytes", "What they may take (`ottla.memory.max.bytes`).")
TAIL_CACHE_BYTES = gauge("tail_cache_bytes", "The newest batches of all logs, from which caught-up readers are served.")
COMPACTIONS = counter(
    "compactions",
    "Compactions of logs that ended: `done`, `void` (the log was cut or deleted meanwhile), `no_space`, `failed`.",
    "outcome",
)
COMPACTION_REMOVED_RECORDS = counter("compaction_removed_records", "Records that compaction removed.")
COMPACTION_RECLAIMED_BYTES = counter("compaction_reclaimed_bytes", "What compaction made of the disk free.")

ARCHIVE_WAITING_BYTES = gauge(
    "archive_waiting_bytes",
    "What the leader keeps for the archive though it has expired, of topics with `ottla.archive.group`. It grows to "
    "`ottla.archive.wait.max.bytes` while the archive stands still.",
    "topic",
    "partition",
)
DELETED_UNARCHIVED_RECORDS = counter(
    "deleted_unarchived_records",
    "Offsets that retention deleted although `ottla.archive.group` had not archived them: a bound was reached.",
    "topic",
)

# -- the process

BUILD_INFO = gauge("build_info", "1, with the versions as labels.", "version", "python", "cluster")
START_TIME = gauge("start_time_seconds", "When the broker began to serve, as seconds since 1970.")
CPU_SECONDS = counter("process_cpu_seconds", "User and system time of the process.")
RESIDENT_BYTES = gauge("process_resident_bytes", "Memory of the process.")
OPEN_FILES = gauge("process_open_files", "File descriptors that are open.")
OPEN_FILES_LIMIT = gauge("process_open_files_limit", "File descriptors that may be open.")
GC_COLLECTIONS = counter("gc_collections", "Runs of Python's garbage collector.", "generation")
GC_COLLECTED = counter("gc_collected_objects", "Objects that the garbage collector freed.", "generation")
LOOP_DELAY_SECONDS = histogram(
    "event_loop_delay_seconds", "How late a timer of the broker fires: how long requests wait for one another."
)
SCRAPE_SECONDS = gauge("scrape_seconds", "What it took to make this page, in slices.")

SECTIONS: dict[str, list[Metric]] = {
    "Requests": [
        *(REQUESTS, REQUEST_ERRORS, REQUEST_SECONDS, PRODUCE_SECONDS, FETCH_SECONDS, COLD_READS, FETCH_SESSIONS),
        *(REQUESTS_IN_FLIGHT, REQUEST_MEMORY, BACKLOG, BACKLOG_LIMIT, BACKLOG_WAITS),
        *(CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_REFUSED),
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
