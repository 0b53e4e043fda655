"""One partition on this broker: its log, its watermark, and who waits on it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.admission import OpaqueLimits, admit, opaque_limits
from ottla.broker.blocking import resolve, run_blocking
from ottla.broker.waits import Settled, Wakeups
from ottla.log.batches import Slice
from ottla.log.contract import ColdRead
from ottla.log.file_log import FileLog
from ottla.log.file_reads import TimedOffset, find_max_timestamp, find_offset_for_time
from ottla.log.memory_log import MemoryLog
from ottla.log.segment import Segment
from ottla.machines.producers import Duplicate, OutOfOrder, ProducerBatch, StaleEpoch
from ottla.model.errors import ErrorCode, Refused
from ottla.model.topic_config import TopicConfig
from ottla.records.batch import BatchHeader, read_header, stamp, stamped
from ottla.records.produce_run import ProduceRun

if TYPE_CHECKING:
    from ottla.broker.topics import Topic

AnyLog = FileLog | MemoryLog
T = TypeVar("T")


@contextmanager
def held(segments: list[Segment]) -> Iterator[list[Segment]]:
    """The segments as they are now, none of which is recycled meanwhile."""
    kept = list(segments)
    for segment in kept:
        segment.readers += 1
    try:
        yield kept
    finally:
        for segment in kept:
            segment.end_read()


class Appended(NamedTuple):
    """A batch has its place; it is acknowledged when the watermark reaches `end_offset`."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int


class FetchWatch(NamedTuple):
    key: int
    look_again: Callable[[], None]


class Partition:
    def __init__(
        self, topic: Topic, index: int, log: AnyLog, *, node_id: int, leader_epoch: int, wakeups: Wakeups
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.replicas: tuple[int, ...] = (node_id,)
        self.isr: tuple[int, ...] = (node_id,)
        self.deleted = False
        self._wakeups = wakeups
        self._limits_of: TopicConfig | None = None
        self._limits: OpaqueLimits | None = None
        self._produce_waits: deque[tuple[int, Settled]] = deque()
        self._fetch_watches: dict[int, FetchWatch] = {}
        log.events = self

    # -- how far it has got -----------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        """With one replica, what the log acknowledges is what readers may see."""
        return self.log.acknowledged_end

    @property
    def last_stable_offset(self) -> int:
        return self.log.acknowledged_end

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.none if self.log.failed is None else ErrorCode.kafka_storage_error

    # -- produce ----------------------------------------------------------------------------------------------

    def append(self, records: memoryview | None, now_ms: int) -> Appended | Refused:
        """Checks a batch and appends it. Does not wait: the caller waits for the acknowledgement (SAFETY 22)."""
        log = self.log
        admitted = admit(records, log.config, now_ms)
        if isinstance(admitted, Refused):
            return admitted
        header, batch = admitted
        if header.producer_id >= 0:
            verdict = self._judge(header)
            if verdict is not None:
                return verdict
        refused = log.refusal(len(batch), header.record_count)
        if refused is not None:
            return refused
        base_offset = log.end_offset
        stamp(batch, base_offset, self.leader_epoch)
        log.append(stamped(header, base_offset, self.leader_epoch), batch)
        append_time = header.max_timestamp if header.is_log_append_time else -1
        return Appended(base_offset, log.end_offset, append_time, log.start_offset)

    def append_run(self, run: ProduceRun, now_ms: int) -> bool:
        """Appends the leading batches of the run that need nothing special, and cuts the run behind them. False if
        there are none: the first batch goes the general way, by `append`."""
        log = self.log
        if log.config is not self._limits_of:
            self._limits_of, self._limits = log.config, opaque_limits(log.config)
        if self._limits is None or not log.takes_run(run):
            return False
        size_bytes_max, after_max_ms, before_max_ms = self._limits
        if not run.admit(size_bytes_max, after_max_ms, before_max_ms, now_ms):
            return False
        if run.has_producers and not self._note_sequences(run):
            return False
        run.stamp(log.end_offset, self.leader_epoch)
        log.append_run(run)
        return True

    def _note_sequences(self, run: ProduceRun) -> bool:
        """Cuts the run before the first batch that does not continue its producer's sequence. What is noted here is
        appended in the same breath."""
        producers = self.log.producers
        base_offset = self.log.end_offset
        for place, batch in enumerate(run.batches):
            header = read_header(batch)
            end_offset = base_offset + header.record_count
            if header.producer_id >= 0:
                if self._judge(header) is not None:
                    run.cut(place)
                    return place > 0
                noted = ProducerBatch(
                    header.base_sequence, header.last_sequence, base_offset, end_offset, header.max_timestamp
                )
                producers.record(header.producer_id, header.producer_epoch, noted)
            base_offset = end_offset
        return True

    def _judge(self, header: BatchHeader) -> Appended | Refused | None:
        """None: append it. A retry of what is in the log waits for what the original waits for (SAFETY 21)."""
        verdict = self.log.producers.judge(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
        )
        if isinstance(verdict, Duplicate):
            batch = verdict.batch
            append_time = batch.timestamp_ms if header.is_log_append_time else -1
            return Appended(batch.base_offset, batch.end_offset, append_time, self.log.start_offset)
        if isinstance(verdict, OutOfOrder):
            return Refused(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, "
                f"expected {verdict.expected_sequence}",
            )
        if isinstance(verdict, StaleEpoch):
            return Refused(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {verdict.current_epoch}, not {header.producer_epoch}",
            )
        return None

    def when_acknowledged(self, end_offset: int, settled: Settled) -> None:
        """Offsets come in growing order but for duplicates, which wait behind what came before them: at worst a
        little longer than they need."""
        if self.log.failed is not None:
            settled(ErrorCode.kafka_storage_error)
        else:
            self._produce_waits.append((end_offset, settled))

    # -- fetch ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed_only: bool = False) -> Slice | ColdRead | Refused:
        upto = self.last_stable_offset if committed_only else self.high_watermark
        if offset < self.log.start_offset or offset > self.log.end_offset:
            return Refused(ErrorCode.offset_out_of_range)
        return self.log.read(offset, max_bytes, upto)

    async def read_cold(self, read: ColdRead) -> Slice | Refused:
        try:
            return await self._on_disk_thread(read.run)
        finally:
            read.ended()

    def watch(self, watch: FetchWatch) -> None:
        self._fetch_watches[watch.key] = watch

    def unwatch(self, key: int) -> None:
        self._fetch_watches.pop(key, None)

    # -- the log tells ----------------------------------------------------------------------------------------

    def on_acknowledged(self) -> None:
        watermark = self.log.acknowledged_end
        waits = self._produce_waits
        while waits and waits[0][0] <= watermark:
            waits.popleft()[1](ErrorCode.none)
        if self._fetch_watches:
            self.wake_fetches()

    def on_log_failed(self, error: OSError) -> None:
        self._settle_all(ErrorCode.kafka_storage_error)

    def wake_fetches(self) -> None:
        for watch in self._fetch_watches.values():
            self._wakeups.wake(watch.key, watch.look_again)

    def close(self) -> None:
        """The topic is deleted, or the broker stops."""
        self.deleted = True
        self._settle_all(ErrorCode.unknown_topic_or_partition)
        self.wake_fetches()

    def _settle_all(self, error: ErrorCode) -> None:
        waits, self._produce_waits = self._produce_waits, deque()
        for _, settled in waits:
            settled(error)

    # -- look-ups and the log's start -------------------------------------------------------------------------

    async def delete_records(self, offset: int) -> int | Refused:
        """Moves the log's start up; -1 means to the watermark. Returns the new start."""
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            return Refused(ErrorCode.offset_out_of_range, f"the log ends at {self.high_watermark}")
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self.log.advance_start(target, lambda error: resolve(done, error))
        error = await done
        if error is not None:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        return self.log.start_offset

    async def offset_for_time(self, timestamp_ms: int) -> TimedOffset | None:
        log = self.log
        if isinstance(log, MemoryLog):
            return log.offset_for_time(timestamp_ms)
        await self._written(log)
        watermark = self.high_watermark
        with held(log.segments) as segments:
            found = await self._on_disk_thread(lambda: find_offset_for_time(log, segments, timestamp_ms))
        return found if found is not None and found.offset < watermark else None

    async def max_timestamp_offset(self) -> TimedOffset | None:
        log = self.log
        if isinstance(log, MemoryLog):
            return log.max_timestamp()
        await self._written(log)
        with held(log.segments) as segments:
            return await self._on_disk_thread(lambda: find_max_timestamp(segments))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.log.epochs.end_of(epoch, self.log.end_offset)

    async def _written(self, log: FileLog) -> None:
        """Look-ups read files: what is appended now must be there."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.when_written(log.end_offset, lambda: resolve(done, None))
        await done

    async def _on_disk_thread(self, job: Callable[[], T]) -> T:
        return await run_blocking(self.log.shared.disk.read_queue, job)
