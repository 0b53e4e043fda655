"""A log that never touches a disk: the `memory` class.

It is meant for write-ahead logs that are kept for a minute and replicated to several brokers. Retention drops single
batches. All memory logs share a budget of bytes; when it is used up, writes are rejected before the machine runs out of
memory (safety: memory-loss).
"""

from __future__ import annotations

from ottla.broker.storage.batch_effects import note_batch
from ottla.broker.storage.batches import BatchList, Slice
from ottla.broker.storage.contract import ColdRead, LogEvents
from ottla.broker.storage.epochs import LeaderEpochs
from ottla.broker.storage.file_reads import TimedOffset
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.startup.state_file import LogState, as_of, merged_producers
from ottla.machines.producers import ProducerStates
from ottla.machines.transactions.partition_table import PartitionTransactions
from ottla.ports import Completion
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.produce_run import BatchRun
from ottla.protocol.records.validation import first_at_or_after, max_timestamp_record
from ottla.reach import branch

_EXPIRED = branch("retention moves the start of a memory log", __name__)
_HELD_BACK = branch("retention of a memory log stops at the high watermark", __name__)
_TRUNCATED = branch("a memory log is truncated", __name__)
_RESET = branch("a memory log is reset", __name__)


class MemoryLog:
    """Implements `contract.Log` in memory."""

    def __init__(self, shared: LogResources, key: LogKey, config: TopicConfig, start_offset: int) -> None:
        self.shared = shared
        self.key = key
        self.config = config
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.transactions = PartitionTransactions(from_offset=start_offset)
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.reserved_end = start_offset
        """Offsets below this are durably reserved: after a restart the log continues above them, never below."""
        self.failed: OSError | None = None
        self.truncating = False
        """Always False: a memory log is truncated at once."""
        self.events: LogEvents | None = None
        self._batches = BatchList()
        self._newest_ms = -1
        self._untimed: dict[int, int] = {}
        """The arrival time of each batch without a timestamp of its own, by base offset."""

    @property
    def acknowledged_end(self) -> int:
        return self.end_offset

    @property
    def size_bytes(self) -> int:
        return self._batches.size_bytes

    @property
    def newest_ms(self) -> int:
        return self._newest_ms

    def refusal(self, size_bytes: int, record_count: int = 1) -> Refused | None:
        if self.end_offset + record_count > self.reserved_end:
            # An offset assigned above the reserved end would be assigned again after a restart.
            return Refused(
                ErrorCode.kafka_storage_error, f"the offsets from {self.reserved_end} on could not be reserved yet"
            )
        if self.shared.memory.has_room_for(size_bytes):
            return None
        limit = self.shared.memory.size_bytes_max
        return Refused(
            ErrorCode.kafka_storage_error,
            f"the logs of the class memory are full ({limit} bytes): shorten retention, or raise "
            "ottla.memory.max.bytes",
        )

    def takes_run(self, run: BatchRun) -> bool:
        return self.refusal(run.size_bytes, run.record_count) is None

    def append_run(self, run: BatchRun) -> None:
        self.epochs.note(run.leader_epoch, run.bases[0])
        self._batches.append_run(run)
        self._after_append(run.size_bytes, run.ends[-1], max(run.max_timestamps))

    def append(self, header: BatchHeader, batch: memoryview) -> None:
        note_batch(header, batch, self)
        self._batches.append(header.base_offset, header.next_offset, batch)
        if header.max_timestamp < 0:
            self._untimed[header.base_offset] = self.shared.clock.now_ms()
        self._after_append(len(batch), header.next_offset, header.max_timestamp)

    def _after_append(self, size_bytes: int, end_offset: int, max_timestamp: int) -> None:
        self.shared.memory.size_bytes += size_bytes
        self.end_offset = end_offset
        if max_timestamp > self._newest_ms:
            self._newest_ms = max_timestamp
        if 0 <= self.config.retention_bytes < self._batches.size_bytes:
            # Do not wait for the next check: the next batch is received into the memory of the oldest one. Only size
            # counts here: the timestamp of a record is not the time.
            self._retain(None)
        if self.events is not None:
            self.events.on_acknowledged()

    def read(self, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True) -> Slice | ColdRead | Refused:
        if offset >= upto:
            return Slice([], 0, offset)
        return self._batches.read(offset, max_bytes, upto)

    def advance_start(self, offset: int, done: Completion) -> None:
        if offset > self.start_offset:
            self._begin_at(offset)
            self._drop_oldest(self._batches.size_bytes, offset)
        done(None)

    def truncate_to(self, offset: int) -> None:
        """Truncates the log to the offset, or to the start of the batch that holds it."""
        _TRUNCATED()
        self.shared.memory.size_bytes -= self._batches.drop_from(offset)
        kept = [(end, read_header(view), view) for _, end, view in self._batches.views_from(self.start_offset)]
        self.end_offset = kept[-1][0] if kept else min(self.start_offset, offset)
        self._untimed = {base: came_ms for base, came_ms in self._untimed.items() if base < self.end_offset}
        if not self.transactions.truncate_to(self.end_offset):
            self.transactions = PartitionTransactions(from_offset=self.end_offset)
        self.epochs.truncate_from(self.end_offset)
        older = [trimmed for entry in self.producers if (trimmed := as_of(self.end_offset, entry)) is not None]
        learned = LogState(epochs=self.epochs)
        for _, header, view in kept:
            note_batch(header, view, learned)
        self.producers = merged_producers(learned.producers, older)

    def reset_to(self, offset: int) -> None:
        """Drops everything: the log begins and ends at the offset."""
        _RESET()
        self.shared.memory.size_bytes -= self._batches.drop_all()
        self._untimed.clear()
        self.start_offset = self.end_offset = offset
        self.epochs, self.producers = LeaderEpochs(), ProducerStates()
        self.transactions = PartitionTransactions(from_offset=offset)

    def apply_retention(self, now_ms: int) -> None:
        before = self.start_offset
        self._retain(now_ms)
        if self.start_offset != before:
            _EXPIRED()

    def _retain(self, now_ms: int | None) -> None:
        """Drops batches that have expired by size and, given the time, by age, but none that ends above the high
        watermark (safety: after-failover)."""
        if "delete" not in self.config.cleanup_policy:
            return
        upto = self.end_offset if self.events is None else min(self.events.high_watermark, self.end_offset)
        retention_ms, retention_bytes = self.config.retention_ms, self.config.retention_bytes
        if retention_bytes >= 0:
            self._drop_oldest(self._batches.size_bytes - retention_bytes, upto)
        if now_ms is not None and retention_ms >= 0:
            while len(self._batches) and now_ms - self._first_ms() > retention_ms and self._drop_oldest(1, upto):
                pass
        if upto < self.end_offset and self.start_offset == upto:
            _HELD_BACK()
        self._begin_at(self.start_offset)

    def _begin_at(self, offset: int) -> None:
        """Moves the start of the log. A truncation below it becomes a reset, so the history below is dropped."""
        self.start_offset = offset
        self.epochs.truncate_before(offset)
        self.transactions.remove_below(offset)
        self.transactions.forget_history(offset)

    def offset_for_time(self, timestamp_ms: int) -> TimedOffset | None:
        """Returns the first record with this timestamp or a later one, or None."""
        for _, _, batch in self._batches.views_from(self.start_offset):
            if read_header(batch).max_timestamp >= timestamp_ms:
                found = first_at_or_after(batch, timestamp_ms, from_offset=self.start_offset)
                if found is not None:
                    return TimedOffset(*found)
        return None

    def max_timestamp(self) -> TimedOffset | None:
        """Returns the record with the highest timestamp, or None if the log is empty."""
        views = [view for _, _, view in self._batches.views_from(self.start_offset)]
        if not views:
            return None
        found = max_timestamp_record(max(views, key=lambda view: read_header(view).max_timestamp))
        return TimedOffset(*found) if found is not None else None

    def close(self) -> None:
        self.shared.memory.size_bytes -= self._batches.drop_all()

    def _first_ms(self) -> int:
        header = read_header(self._batches.first_view)
        return self._untimed.get(header.base_offset, header.max_timestamp)

    def _drop_oldest(self, size_bytes: int, upto: int) -> int:
        """Drops the oldest whole batches until they add up to `size_bytes`, but none that ends above `upto`. Returns
        their number."""
        batches = self._batches
        count, dropped_bytes = batches.drop_oldest(len(batches), upto, size_bytes, 0)
        self.shared.memory.size_bytes -= dropped_bytes
        if count:
            first_offset = batches.first_offset if len(batches) else self.end_offset
            assert first_offset is not None
            self.start_offset = max(self.start_offset, first_offset)
            while self._untimed and (oldest := next(iter(self._untimed))) < first_offset:
                del self._untimed[oldest]
        return count
