"""A partition that this broker follows: what it asks its leader for, and what it does with the answer.

A reply is applied only if it still fits: the same leader epoch, the same end, the same topic, and no await between that
check and the append (SAFETY 19). Every batch is checked against its CRC, and must follow on without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.cluster.lanes import LIVE, Lag
from ottla.log.file_log import FileLog
from ottla.log.notes import note_sequence
from ottla.machines.controller.state import Member
from ottla.model.errors import ErrorCode
from ottla.records.batch import BatchHeader, crc_matches, read_header, split_batches
from ottla.records.compacted import is_placeholder, rest_of_placeholder
from ottla.records.control import end_of_transaction
from ottla.records.errors import CorruptRecords
from ottla.records.followed_run import find_followed_run
from ottla.wire.fetch import FetchPartition
from ottla.wire.fetch_client import FetchedPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.replica_fetcher import ReplicaFetcher
    from ottla.broker.partition import Partition

log = logging.getLogger("ottla.replication")


class Following:
    def __init__(
        self,
        partition: Partition,
        leader: Member,
        leader_epoch: int,
        high_watermark: int,
        *,
        is_in_sync: bool = True,
    ) -> None:
        self._partition = partition
        self.leader_member = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.leader_watermark = -1
        """What the leader last said; it may have known less than we do when it began to lead."""
        self.lag = Lag(is_lagging=not is_in_sync)
        self.fetcher: ReplicaFetcher | None = None
        """By whom it is fetched."""
        self._waits = False
        """A truncation has to end before the next fetch."""
        self.on_ready: Callable[[], None] = _nothing
        """The partition may be fetched again."""
        self.ended = False

    def next_fetch(self, bytes_max: int = LIVE.partition_bytes_max) -> FetchPartition | None:
        """None if it cannot be asked for now."""
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
        """Applies an answer. The error is what the leader said, or what is wrong with what it sent."""
        log = self._partition.log
        is_same = asked.current_leader_epoch == self.leader_epoch and asked.fetch_offset == log.end_offset
        if self.ended or self._waits or not is_same:
            return ErrorCode.none
        if answer.error:
            return ErrorCode(answer.error)
        if answer.diverging is not None:
            self._truncate(*answer.diverging)
            return ErrorCode.none
        error = self._append(answer.records)
        if isinstance(log, FileLog) and not log.is_journaled:
            # Before the next fetch leaves, so that what the write call takes at once is told in the same packet.
            log.write_now()
        if error is ErrorCode.none:
            self._follow_marks(answer)
            taken = log.end_offset - asked.fetch_offset
            traffic = self._partition.topic.traffic
            traffic.records_followed += taken
            traffic.bytes_followed += len(answer.records)
            self.lag.note(taken, len(answer.records), answer.high_watermark - log.end_offset)
        return error

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
            # The leader has compacted: our end may be where one of several batches began that are gone there.
            batch = memoryview(rest_of_placeholder(header, log.end_offset))
            header = read_header(batch)
        if header.base_offset != log.end_offset:
            return ErrorCode.corrupt_message
        if not log.epochs.latest <= header.leader_epoch <= self.leader_epoch:
            return ErrorCode.corrupt_message
        if header.is_control:
            end_of_transaction(header, batch)  # one that cannot be read is not taken
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
            self._partition.wake_fetches()
        if log.start_offset < answer.log_start_offset <= log.end_offset:
            log.advance_start(answer.log_start_offset, lambda _: None)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """To where the two histories part, as far as one answer tells: the next fetch finds out if that was all."""
        log = self._partition.log
        own_epoch, own_end = log.epochs.end_of(epoch, log.end_offset)
        target = end_offset if own_epoch == -1 else min(end_offset, own_end)
        if target >= log.end_offset:
            target = min(target, log.epochs.start_of(log.epochs.latest))
        self._report_truncation(target)
        if target < log.start_offset:
            self.rebuild(max(target, 0))
            return
        self._give_up_from(target)
        self._partition.truncate_log(target, self._go_on)

    def _report_truncation(self, target: int) -> None:
        topic, index, end = self._partition.topic.name, self._partition.index, self._partition.log.end_offset
        log.info(
            "%s-%d: cut from %d to %d, as the leader of epoch %d has it", topic, index, end, target, self.leader_epoch
        )

    def rebuild(self, start_offset: int) -> None:
        """Everything here is of no use: the log begins again at the offset, as a new one."""
        self._give_up_from(start_offset)
        self._partition.reset_log(start_offset, self._go_on)

    def _give_up_from(self, offset: int) -> None:
        """After an unclean election the cut may be below the watermark: what comes to those offsets next is visible
        when this leader says so, not because something else was there."""
        self._waits = True
        self.high_watermark = min(self.high_watermark, offset)

    def _go_on(self, error: OSError | None) -> None:
        self._waits = False
        if not self.ended and error is None:
            self.on_ready()


def _nothing() -> None: ...
