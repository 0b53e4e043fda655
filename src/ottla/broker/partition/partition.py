"""One partition on this broker: its log, its high watermark, and the requests that wait on it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from ottla.broker.blocking_jobs import run_blocking
from ottla.broker.partition.admission import OpaqueLimits, admit, opaque_limits
from ottla.broker.partition.backlog import PartitionBacklog
from ottla.broker.partition.batch_validation import UNGUARDED, Appended, BatchOrigin, judge, record_sequences
from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.layout import Layout, Placement
from ottla.broker.partition.partition_topic import PartitionTopic
from ottla.broker.partition.produce_waits import ProduceWaits
from ottla.broker.partition.refused_batches import RefusedBatches
from ottla.broker.partition.waits import Settled, Wakeups
from ottla.broker.partition.watches import PartitionWatches
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.startup.corrupt_epochs import distrust_epochs_above
from ottla.machines.replication import LeaderReplication
from ottla.machines.transactions.partition_table import Marker
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import stamp, stamped
from ottla.protocol.records.produce_run import ProduceRun
from ottla.reach import branch

_CUT_WHILE_READ = branch("a read is refused because the log was truncated meanwhile", __name__)
_DUPLICATE_WAITS = branch("a duplicate waits for the acknowledgement of its original", __name__)
_DEPOSED = branch("produces wait when their leader loses its role", __name__)
_TOO_FEW = branch("produces fail because too few replicas are in sync", __name__)

ALL = -1
"""acks=all"""


class Role(Enum):
    """The role of this broker's replica of a partition."""

    ALONE = "the only replica of a broker that is alone"
    LEADER = "takes records and gives them to its followers"
    FOLLOWER = "takes what its leader has"
    NONE = "waits for a leader"


class PartitionEvents(Protocol):
    """Callbacks from a partition to the cluster code of its broker."""

    def on_follower_acknowledged(self, partition: Partition) -> None:
        """The log of a follower has acknowledged more."""
        ...

    def on_log_failed(self, partition: Partition) -> None:
        """The log has failed."""
        ...


class Partition:
    """A replica of a partition on this broker, in whichever role.

    `waits` holds the produce requests that wait for acknowledgements, `watches` the fetches that wait for changes.
    """

    def __init__(
        self,
        topic: PartitionTopic,
        index: int,
        log: AnyLog,
        *,
        node_id: int,
        leader_epoch: int,
        wakeups: Wakeups,
        backlog: PartitionBacklog,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self._node_id = node_id
        self.leader_epoch = leader_epoch
        self.placement = Placement(node_id, (node_id,), (node_id,))
        self.leading: LeaderReplication | None = None
        self.following: FollowerPartition | None = None
        self.role = Role.ALONE
        self.events: PartitionEvents | None = None
        self.on_marker: Callable[[Marker], None] | None = None
        """Set by a coordinator that depends on this partition; called when a marker was appended."""
        self.deleted = False
        self.cuts = 0
        """Number of truncations. A read that began before a truncation is recognised by it (safety: fetch-replies)."""
        self._last_watermark = 0
        """High watermark at the end of the previous role. A restart loses it; the next leader determines it again."""
        self.backlog = backlog
        self.waits = ProduceWaits()
        self.watches = PartitionWatches(wakeups)
        self.refused = RefusedBatches()
        self._run_limits: tuple[TopicConfig | None, OpaqueLimits | None] = None, None
        """The limits for runs, and the configuration that they were taken from."""
        log.events = self

    @property
    def layout(self) -> Layout:
        """The leader, the replicas and the ISR, as this broker reports them to clients."""
        placement = self.placement
        return Layout(self.index, placement.leader, self.leader_epoch, placement.replicas, placement.isr)

    @property
    def is_led_here(self) -> bool:
        """Whether this broker is the leader, or runs standalone."""
        return self.role in (Role.ALONE, Role.LEADER)

    @property
    def is_read_here(self) -> bool:
        """Whether consumers that allow reading from a follower are served here. A follower outside the ISR may be
        arbitrarily stale, so it redirects them."""
        return self.is_led_here or (self.role is Role.FOLLOWER and self._node_id in self.placement.isr)

    # -- offsets ----------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The exclusive end of what consumers may read. With one replica, this is the acknowledged end of the log."""
        if self.leading is not None:
            return self.leading.high_watermark
        if self.following is not None:
            return min(self.following.high_watermark, self.log.end_offset)
        if self.role is Role.NONE:
            return min(self._last_watermark, self.log.end_offset)
        return self.log.acknowledged_end

    @property
    def is_watermark_known(self) -> bool:
        """Whether the high watermark is reliable. After an election it may be below offsets that consumers have already
        read, until it reaches the start of the epoch (safety: after-failover)."""
        return self.leading is None or self.leading.high_watermark >= self.leading.epoch_start

    @property
    def last_stable_offset(self) -> int:
        """The exclusive end for read_committed consumers: below every open transaction (safety: last-stable-offset)."""
        watermark, transactions = self.high_watermark, self.log.transactions
        if transactions.is_quiet:
            return watermark
        transactions.advance_watermark(watermark)
        return min(transactions.last_stable_offset(self.log.start_offset), watermark)

    def acknowledged_for(self, acks: int) -> int:
        """Returns the exclusive end of the records that are acknowledged to a producer with these acks: the
        acknowledged end of the local log for acks=1, otherwise the high watermark."""
        return self.log.acknowledged_end if acks == 1 else self.high_watermark

    @property
    def error(self) -> ErrorCode:
        """KAFKA_STORAGE_ERROR if the log has failed, otherwise NONE."""
        return ErrorCode.none if self.log.failed is None else ErrorCode.kafka_storage_error

    # -- produce ----------------------------------------------------------------------------------------------

    def append(self, records: memoryview | None, now_ms: int, guarded: BatchOrigin = UNGUARDED) -> Appended | Refused:
        """Validates and appends a batch, without waiting for its acknowledgement (safety: produce-order)."""
        log = self.log
        if self.topic.internal:
            return Refused(ErrorCode.invalid_topic_exception, f"Cannot append to internal topic {self.topic.name}.")
        if log.producers.writer_epoch and not guarded.is_writer:
            return Refused(ErrorCode.policy_violation, "The log is fenced by a single writer of the append stream.")
        admitted = admit(records, log.config, now_ms)
        if isinstance(admitted, Refused):
            return admitted
        header, batch = admitted
        if header.producer_id >= 0:
            verdict = judge(log, header, self.refused, now_ms, guarded)
            if verdict is not None:
                if isinstance(verdict, Appended) and verdict.end_offset > self.high_watermark:
                    _DUPLICATE_WAITS()
                return verdict
        refused = log.refusal(len(batch), header.record_count)
        if refused is not None:
            self.refused.note(batch, refused, now_ms)
            return refused
        base_offset = log.end_offset
        stamp(batch, base_offset, self.leader_epoch)
        log.append(stamped(header, base_offset, self.leader_epoch), batch)
        self.topic.traffic.note_batch(header.record_count, len(batch))
        self._on_produced(len(batch))
        append_time = header.max_timestamp if header.is_log_append_time else -1
        return Appended(base_offset, log.end_offset, append_time, log.start_offset)

    def append_run(self, run: ProduceRun, now_ms: int) -> bool:
        """Appends the leading batches of a run that take the common path, and cuts the run after them. Returns False if
        there are none; the first batch then takes the general path, `append`."""
        log = self.log
        config, limits = self._run_limits
        if log.config is not config:
            limits = None if self.topic.internal else opaque_limits(log.config)
            self._run_limits = log.config, limits
        if limits is None or log.producers.writer_epoch or not log.takes_run(run):
            return False
        size_bytes_max, after_max_ms, before_max_ms = limits
        if not run.admit(size_bytes_max, after_max_ms, before_max_ms, now_ms):
            return False
        if run.has_producers and not record_sequences(log, run, self.refused, now_ms):
            return False
        run.stamp(log.end_offset, self.leader_epoch)
        log.append_run(run)
        traffic = self.topic.traffic
        traffic.batches_in += len(run)
        traffic.records_in += run.record_count
        traffic.bytes_in += run.size_bytes
        self._on_produced(run.size_bytes, is_awaited=run.acks == ALL)
        return True

    def refusal_for(self, acks: int) -> Refused | None:
        """Returns the reason why a produce request cannot be accepted here now, if any."""
        if self.role is Role.ALONE:
            return None
        if self.leading is None:
            return Refused(ErrorCode.not_leader_or_follower)
        if acks == ALL and not self.leading.has_enough_in_sync:
            return Refused(
                ErrorCode.not_enough_replicas,
                f"{len(self.leading.isr)} replicas are in sync, fewer than min.insync.replicas",
            )
        return None

    def when_acknowledged(self, end_offset: int, settled: Settled, acks: int = ALL) -> None:
        """Calls `settled` when the records up to `end_offset` are acknowledged, or with an error."""
        if self.log.failed is not None:
            settled(ErrorCode.kafka_storage_error)
        elif acks == 1 and self.leading is not None:
            self.waits.local.append((end_offset, settled))
        else:
            self.waits.replicated.append((end_offset, settled))
            if self.watches.is_unannounced:
                self.watches.wake_replicas()

    # -- fetch ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed_only: bool = False) -> Slice | ColdRead | Refused:
        """Reads for a consumer, up to the high watermark or, with `committed_only`, up to the last stable offset.
        Returns a ColdRead, to be passed to `read_cold`, if the data is not in memory. Refused if the offset is outside
        the log; a follower reports an offset above its log end as not available yet."""
        upto = self.last_stable_offset if committed_only else self.high_watermark
        if offset < self.log.start_offset:
            return Refused(ErrorCode.offset_out_of_range)
        if offset > self.log.end_offset:
            # The leader may have records that this follower does not have yet (KIP-392).
            is_all = self.following is None
            return Refused(ErrorCode.offset_out_of_range if is_all else ErrorCode.offset_not_available)
        return self.log.read(offset, max_bytes, upto, keeps_empty=False)

    async def read_cold(self, read: ColdRead, cuts: int | None = None) -> Slice | Refused:
        """Runs a read on the disk thread. `cuts` is the number of truncations when the read was planned: if the log was
        truncated since, the data may belong to an abandoned history and is refused."""
        before = self.cuts if cuts is None else cuts
        try:
            outcome = await run_blocking(self.log.shared.disk.read_queue, read.run)
        finally:
            read.ended()
        if self.cuts == before:
            return outcome
        _CUT_WHILE_READ()
        return Refused(ErrorCode.not_leader_or_follower)

    def read_as_follower(self, offset: int, max_bytes: int) -> Slice | ColdRead | Refused:
        """Reads up to the log end, including unacknowledged records: replicas sync in parallel."""
        if offset < self.log.start_offset or offset > self.log.end_offset:
            return Refused(ErrorCode.offset_out_of_range)
        return self.log.read(offset, max_bytes, self.log.end_offset)

    # -- roles ------------------------------------------------------------------------------------------------

    def lead(self, leading: LeaderReplication, leader_epoch: int) -> None:
        """Makes this broker the leader. Requests that wait for an earlier role fail with NOT_LEADER_OR_FOLLOWER."""
        self._leave_role(Role.LEADER)
        self.leading = leading
        self.leader_epoch = leader_epoch
        distrust_epochs_above(self.log, leader_epoch)
        # Before its first record: a follower with records of an epoch unknown here must find that epoch's end.
        self.log.epochs.note(leader_epoch, self.log.end_offset)

    def follow(self, following: FollowerPartition, leader_epoch: int) -> None:
        """Makes this broker a follower. Requests that wait for an earlier role fail with NOT_LEADER_OR_FOLLOWER."""
        self._leave_role(Role.FOLLOWER)
        self.following = following
        self.leader_epoch = leader_epoch
        distrust_epochs_above(self.log, leader_epoch)
        # Drop an epoch that this broker led without writing a record: the leader's history does not contain it.
        self.log.epochs.truncate_from(self.log.end_offset)

    def stand_by(self, leader_epoch: int) -> None:
        """Gives up the role: the partition has no leader, or none that this broker may follow."""
        self._leave_role(Role.NONE)
        self.leader_epoch = max(leader_epoch, self.leader_epoch)

    def _leave_role(self, role: Role) -> None:
        self._last_watermark = self.high_watermark
        self.role = role
        self.leading = None
        if self.following is not None:
            self.following.ended = True
            self.following = None
        self.log.transactions.forget_verifications()
        if self.waits.replicated:
            _DEPOSED()
        self._settle_all(ErrorCode.not_leader_or_follower)
        self.watches.wake_fetches()
        self.watches.wake_replicas()

    def on_watermark(self) -> None:
        """Handles a new high watermark, after progress of a follower or a change of the ISR."""
        self._acknowledge_below(self.high_watermark)
        self.watches.on_watermark()

    def on_isr_changed(self) -> None:
        """Fails acks=all requests if the ISR has become smaller than min.insync.replicas. The client may retry:
        idempotence prevents duplicates of records that are already here."""
        if self.leading is not None and not self.leading.has_enough_in_sync:
            if self.waits.replicated:
                _TOO_FEW()
            self.waits.fail_replicated(ErrorCode.not_enough_replicas_after_append)

    def on_appended(self) -> None:
        """Notifies followers of records from a coordinator on this broker, which waits for their replication."""
        if self.leading is not None:
            self._on_replica_acknowledged()
            self.watches.wake_replicas()

    def _on_produced(self, size_bytes: int, *, is_awaited: bool = False) -> None:
        """Adds produced records to the backlog and notifies followers. If the caller is about to wait for the
        followers, `when_acknowledged` notifies them."""
        if self.log.end_offset > self.high_watermark:
            self.backlog.add(self.log.end_offset, size_bytes)
        if self.leading is not None:
            self._on_replica_acknowledged()
            if is_awaited:
                self.watches.is_unannounced = True
            else:
                self.watches.on_produced()

    # -- events of the log ------------------------------------------------------------------------------------

    def on_acknowledged(self) -> None:
        if self.role is not Role.ALONE:
            self._on_replica_acknowledged()
        else:
            self._acknowledge_below(self.log.acknowledged_end)

    def _acknowledge_below(self, watermark: int) -> None:
        self.log.transactions.advance_watermark(watermark)
        if self.waits.replicated:
            self.waits.settle_replicated(watermark)
        if self.watches.fetches:
            self.watches.wake_fetches()
        self.backlog.release(watermark)

    def _on_replica_acknowledged(self) -> None:
        end = self.log.acknowledged_end
        if self.waits.local:
            self.waits.settle_local(end)
        if self.leading is not None:
            if self.leading.on_own_progress(self.log.end_offset, end):
                self.on_watermark()
        elif self.following is not None and self.events is not None:
            self.events.on_follower_acknowledged(self)

    def on_log_failed(self, error: OSError) -> None:
        self._settle_all(ErrorCode.kafka_storage_error)
        if self.events is not None:
            self.events.on_log_failed(self)

    def close(self, error: ErrorCode = ErrorCode.unknown_topic_or_partition) -> None:
        """Closes the partition because the topic is deleted, the replica has moved, or the broker stops. Pending
        produces may already be written, so `error` must not say otherwise unless no replica has them."""
        self.deleted = True
        self._settle_all(error)
        self.watches.wake_fetches()

    def _settle_all(self, error: ErrorCode) -> None:
        self.backlog.clear()
        self.waits.fail_all(error)
