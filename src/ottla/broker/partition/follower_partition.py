"""The follower's side of a partition: what it requests from its leader, and how it applies the reply.

A reply is applied only if the leader epoch, the log end and the topic are still those of the request, with no await
between that check and the append (safety: fetch-replies). Every batch is checked against its CRC and must continue the
log without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ottla.broker.partition.follower_lag import Lag
from ottla.broker.partition.log_truncator import LogTruncator
from ottla.broker.partition.partition_topic import PartitionTopic
from ottla.broker.partition.watches import PartitionWatches
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.batch_effects import note_sequence
from ottla.broker.storage.file_log import FileLog
from ottla.machines.controller.state import Member
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import BatchHeader, crc_matches, read_header, split_batches
from ottla.protocol.records.compacted_batches import is_placeholder, rest_of_placeholder
from ottla.protocol.records.control import end_of_transaction
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.replica_run import find_followed_run
from ottla.protocol.wire.fetch import FetchPartition
from ottla.protocol.wire.fetch_client import FetchedPartition
from ottla.reach import branch

_DIVERGED = branch("a follower diverges from its leader", __name__)
_BEGINS_LATER = branch("a follower takes over the start of its leader's log", __name__)
_BEGAN_INSIDE = branch("a follower begins with a batch that its leader's log starts in", __name__)
_PLACEHOLDER = branch("a follower ends inside a compacted range", __name__)
_STALE = branch("a follower drops a reply to an outdated fetch", __name__)
_BELOW_START = branch("a follower diverges below the start of its log", __name__)

log = logging.getLogger("ottla.replication")


class FollowedPartition(Protocol):
    """The parts of a partition that its follower's side works on."""

    topic: PartitionTopic
    index: int
    log: AnyLog
    watches: PartitionWatches
    cuts: int
    """Number of truncations."""


class FollowerPartition:
    """A partition that this broker replicates from its leader in one epoch."""

    def __init__(
        self,
        partition: FollowedPartition,
        truncator: LogTruncator,
        leader: Member,
        leader_epoch: int,
        high_watermark: int,
        *,
        is_in_sync: bool = True,
    ) -> None:
        self._partition = partition
        self._truncator = truncator
        self.leader_member = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.leader_watermark = -1
        """High watermark in the leader's last reply. At the start of its epoch a leader may know a lower one than this
        broker."""
        self.lag = Lag(is_lagging=not is_in_sync)
        self._waits = False
        """A truncation has to finish before the next fetch."""
        self.on_ready: Callable[[], None] = _nothing
        """Called when the partition may be fetched again."""
        self.ended = False

    def next_fetch(self, bytes_max: int) -> FetchPartition | None:
        """Returns the next request for this partition, or None if it cannot be fetched now."""
        log = self._partition.log
        if self._waits or self.ended or log.failed is not None or log.truncating:
            return None
        return FetchPartition(
            partition=self._partition.index,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.epochs.latest,
            log_start_offset=log.start_offset,
            max_bytes=bytes_max,
            high_watermark=self.high_watermark,
            acknowledged_end=log.acknowledged_end,
        )

    def take(self, asked: FetchPartition, answer: FetchedPartition) -> ErrorCode:
        """Applies a reply. Returns the leader's error, or the error in the data that it sent."""
        log = self._partition.log
        is_same = asked.current_leader_epoch == self.leader_epoch and asked.fetch_offset == log.end_offset
        if self.ended or self._waits or not is_same:
            _STALE()
            return ErrorCode.none
        if answer.error:
            return ErrorCode(answer.error)
        if answer.diverging is not None:
            _DIVERGED()
            self._truncate(*answer.diverging)
            return ErrorCode.none
        is_empty = log.start_offset == log.end_offset or log.end_offset <= answer.log_start_offset
        if is_empty and self._begins_inside(answer.records):
            return ErrorCode.none
        if isinstance(log, FileLog) and not log.is_journaled:
            # Write before the next fetch is sent, so that the same packet reports the progress of this write.
            log.writer.expect_write()
            try:
                error = self._append(answer.records)
            finally:
                log.writer.write_now()
        else:
            error = self._append(answer.records)
        if error is ErrorCode.none:
            self._follow_marks(answer)
            taken = log.end_offset - asked.fetch_offset
            traffic = self._partition.topic.traffic
            traffic.records_followed += taken
            traffic.bytes_followed += len(answer.records)
            self.lag.note(taken, len(answer.records), answer.high_watermark - log.end_offset)
        return error

    def _begins_inside(self, records: memoryview) -> bool:
        """Handles a leader's log that starts in the middle of a batch, after DeleteRecords. A log that ends at that
        start has to begin with the whole batch: it is empty, or the leader has deleted everything in it. It is reset to
        the batch's first offset and takes the batch from this reply, because the leader refuses a fetch below its log
        start. The next reply moves the start."""
        end = self._partition.log.end_offset
        try:
            first = next(split_batches(records), None)
        except CorruptRecords:
            return False
        if first is None or not first.header.base_offset < end < first.header.next_offset:
            return False
        if is_placeholder(first.header) or not crc_matches(first.data, first.header):
            return False
        _BEGAN_INSIDE()
        self._give_up_from(first.header.base_offset)
        begin = partial(self._begin_with, memoryview(bytes(first.data)))
        self._truncator.reset(self._partition.log, first.header.base_offset, begin)
        return True

    def _begin_with(self, batch: memoryview, error: OSError | None) -> None:
        if error is None and not self.ended:
            self._append(batch)
        self._go_on(error)

    def _append(self, records: memoryview) -> ErrorCode:
        log = self._partition.log
        at = 0
        try:
            while at < len(records):
                run = find_followed_run(records, at, log.end_offset, log.epochs.latest, self.leader_epoch)
                if run is not None and log.takes_run(run):
                    for header in run.numbered:
                        note_sequence(header, log)
                    log.append_run(run)
                    at += run.size_bytes
                    continue
                first = next(split_batches(records[at:]), None)
                if first is None:
                    break
                error = self._append_one(*first)
                if error is not ErrorCode.none:
                    return error
                at += first.header.size_bytes
        except CorruptRecords:
            return ErrorCode.corrupt_message
        return ErrorCode.none

    def _append_one(self, header: BatchHeader, batch: memoryview) -> ErrorCode:
        log = self._partition.log
        if not crc_matches(batch, header):
            return ErrorCode.corrupt_message
        if header.base_offset < log.end_offset < header.next_offset and is_placeholder(header):
            # The leader has compacted: this log's end may be at the start of one of several batches that are gone
            # there.
            _PLACEHOLDER()
            batch = memoryview(rest_of_placeholder(header, log.end_offset))
            header = read_header(batch)
        if header.base_offset != log.end_offset:
            return ErrorCode.corrupt_message
        if not log.epochs.latest <= header.leader_epoch <= self.leader_epoch:
            return ErrorCode.corrupt_message
        if header.is_control:
            end_of_transaction(header, batch)  # raises if the marker cannot be read
        refused = log.refusal(len(batch), header.record_count)
        if refused is not None:
            return refused.error
        log.append(header, batch)
        return ErrorCode.none

    def _follow_marks(self, answer: FetchedPartition) -> None:
        log = self._partition.log
        self.leader_watermark = answer.high_watermark
        watermark = min(answer.high_watermark, log.end_offset)
        if watermark > self.high_watermark:
            self.high_watermark = watermark
            log.transactions.advance_watermark(watermark)
            self._partition.watches.wake_fetches()
        if log.start_offset < answer.log_start_offset <= log.end_offset:
            _BEGINS_LATER()
            log.advance_start(answer.log_start_offset, lambda _: None)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """Truncates the log to the point of divergence, as far as one reply tells. The next fetch finds out whether the
        histories diverge earlier still."""
        log = self._partition.log
        own_epoch, own_end = log.epochs.end_of(epoch, log.end_offset)
        target = end_offset if own_epoch == -1 else min(end_offset, own_end)
        if target >= log.end_offset:
            target = min(target, log.epochs.start_of(log.epochs.latest))
        self._report_truncation(target)
        if target < log.start_offset:
            _BELOW_START()
            self.rebuild(max(target, 0))
            return
        self._give_up_from(target)
        self._truncator.truncate(log, target, self._go_on)

    def _report_truncation(self, target: int) -> None:
        topic, index, end = self._partition.topic.name, self._partition.index, self._partition.log.end_offset
        log.info(
            "%s-%d: truncated from %d to %d to match the leader of epoch %d",
            topic,
            index,
            end,
            target,
            self.leader_epoch,
        )

    def rebuild(self, start_offset: int) -> None:
        """Discards the whole log and starts a new one at the offset."""
        self._give_up_from(start_offset)
        self._truncator.reset(self._partition.log, start_offset, self._go_on)

    def _give_up_from(self, offset: int) -> None:
        """Lowers the high watermark to the truncation point. After an unclean election the truncation may be below it,
        and new records at those offsets become visible only when this leader says so."""
        self._waits = True
        self._partition.cuts += 1
        self.high_watermark = min(self.high_watermark, offset)

    def _go_on(self, error: OSError | None) -> None:
        self._waits = False
        if not self.ended and error is None:
            self.on_ready()


def _nothing() -> None: ...
