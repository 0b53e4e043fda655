"""Periodic work: retention, compaction, flushing, expiry of producers, and offset reservations of memory logs."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.blocking_jobs import resolve, run_blocking
from ottla.broker.partition.archive_progress import GroupArchiveProgress
from ottla.broker.partition.archive_waits import ArchiveWaits
from ottla.broker.storage.compaction.compaction import CompactionLimits
from ottla.broker.storage.compaction.compactor import Candidate, Compactor
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.segment import seal_all
from ottla.ports import Timer
from ottla.protocol.model.durability import Durability

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition.partition import Partition
    from ottla.broker.topics.topics import Topic

TICK_MS = 250.0
RETENTION_CHECKS_A_PERIOD = 10
"""A log is checked ten times per retention period, so that even a retention of seconds is exceeded only by a
fraction."""
RETENTION_CHECK_MS_MIN = 250
PRODUCER_EXPIRY_CHECK_MS = 600_000
OFFSETS_RESERVED = 10_000_000


class Housekeeping:
    """Runs the periodic work of a broker, from one timer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer: Timer | None = None
        self._stopped = False
        self._next_flush_ms = 0.0
        self._next_expiry_ms = 0.0
        self._next_compaction_ms = 0.0
        self.compactor: Compactor | None = None
        self._retention_due: list[tuple[float, int, Partition]] = []
        self._planned: dict[Partition, float] = {}
        """When each partition is due. A heap entry with another time is stale."""
        self._number = 0
        self._taking_reserve = False
        self._reserving = asyncio.Lock()
        self._reservation: asyncio.Task[None] | None = None
        self._reservation_failure = ""
        """The failure of the last reservation, so that a lasting one is reported once."""
        self._archive_progress = GroupArchiveProgress(broker)
        self.archive_waits = ArchiveWaits(broker, self._archive_progress)

    def start(self) -> None:
        now = self._broker.clock.monotonic_ms()
        self._next_flush_ms = now + self._broker.config.flush_interval_ms
        self._next_expiry_ms = now + PRODUCER_EXPIRY_CHECK_MS
        self._next_compaction_ms = now + self._broker.config.log_cleaner_backoff_ms
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self.compactor is not None:
            self.compactor.stop()
        self.archive_waits.stop()
        self._archive_progress.stop()

    def _arm(self) -> None:
        if not self._stopped:
            self._timer = self._broker.clock.call_later(TICK_MS, self._tick)

    def _tick(self) -> None:
        try:
            now = self._broker.clock.monotonic_ms()
            self._check_retention(now)
            self._check_flush(now)
            self._check_compaction(now)
            self._check_space()
            if now >= self._next_expiry_ms:
                self._next_expiry_ms = now + PRODUCER_EXPIRY_CHECK_MS
                self._expire_producers()
            if self._reservation is None and self._memory_logs_running_out():
                self._reservation = asyncio.ensure_future(self.reserve_offsets())
                self._reservation.add_done_callback(self._on_reserved)
        finally:
            self._arm()

    # -- retention ---------------------------------------------------------------------------------------------

    def look_at(self, topic: Topic) -> None:
        """Reschedules the partitions of a topic that is new or whose configuration has changed."""
        now = self._broker.clock.monotonic_ms()
        for partition in topic.partitions:
            self._plan(partition, now + self._retention_interval_ms(partition))
            if not topic.config.archive_group:
                self.archive_waits.forget(partition)

    def _plan(self, partition: Partition, at: float) -> None:
        self._planned[partition] = at
        self._number += 1
        heapq.heappush(self._retention_due, (at, self._number, partition))

    def _check_retention(self, now: float) -> None:
        wall_ms = self._broker.clock.now_ms()
        due = self._retention_due
        while due and due[0][0] <= now:
            at, _, partition = heapq.heappop(due)
            if self._planned.get(partition) != at:
                continue
            if partition.deleted:
                del self._planned[partition]
                self.archive_waits.forget(partition)
                continue
            self._apply_retention(partition, wall_ms)
            self._plan(partition, now + self._retention_interval_ms(partition))

    def _apply_retention(self, partition: Partition, wall_ms: int) -> None:
        log = partition.log
        if isinstance(log, MemoryLog):
            log.apply_retention(wall_ms)
        elif partition.topic.config.archive_group:
            self.archive_waits.look(partition, wall_ms)
        elif self._broker.store.flusher is not None:
            apply_retention(log, self._broker.store.flusher, wall_ms, partition.high_watermark)

    def _retention_interval_ms(self, partition: Partition) -> float:
        interval = self._broker.config.log_retention_check_interval_ms
        retention_ms = partition.topic.config.retention_ms
        if retention_ms >= 0:
            interval = min(interval, retention_ms // RETENTION_CHECKS_A_PERIOD)
        if partition.topic.config.retention_bytes >= 0:
            interval = min(interval, 1000)
        return max(interval, RETENTION_CHECK_MS_MIN)

    # -- compaction --------------------------------------------------------------------------------------------

    def _check_compaction(self, now: float) -> None:
        config, flusher = self._broker.config, self._broker.store.flusher
        if now < self._next_compaction_ms or flusher is None or not config.log_cleaner_enable:
            return
        self._next_compaction_ms = now + config.log_cleaner_backoff_ms
        limits = CompactionLimits(
            config.log_cleaner_dedupe_buffer_size,
            config.log_cleaner_cpu_percent,
            config.log_cleaner_io_max_bytes_per_second,
        )
        if self.compactor is None:
            self.compactor = Compactor(flusher, limits, lambda: self._broker.new_id().bytes)
        self.compactor.limits = limits
        self.compactor.look(self._compacted_logs)

    def _compacted_logs(self) -> Iterator[Candidate]:
        for partition in self._broker.partitions():
            if partition.topic.config.is_compacted and isinstance(partition.log, FileLog):
                yield Candidate(partition.log, partition.last_stable_offset)

    # -- space -------------------------------------------------------------------------------------------------

    def _check_space(self) -> None:
        """Reallocates the space reserve after the disk was full. Writes resume once it is held."""
        reserve = self._broker.shared.reserve
        if reserve is None or reserve.is_held or self._taking_reserve:
            return
        self._taking_reserve = True

        def taken(held: bool | None, error: BaseException | None) -> None:
            self._taking_reserve = False
            if held:
                self._broker.shared.report("there is space on the disk again: writes go on")

        self._broker.shared.disk.sync_queue.call(reserve.hold, taken)

    # -- flushing ----------------------------------------------------------------------------------------------

    def _check_flush(self, now: float) -> None:
        flusher, journal = self._broker.store.flusher, self._broker.shared.journal
        if flusher is None or flusher.is_running:
            return
        wall_ms = self._broker.clock.now_ms()
        for log in list(self._broker.shared.unsynced):
            if isinstance(log, FileLog) and log.wants_flush(wall_ms):
                flusher.want(log)
        if now >= self._next_flush_ms:
            self._next_flush_ms = now + self._broker.config.flush_interval_ms
            flusher.run(everything=True)
        elif flusher.has_wanted or (journal is not None and journal.under_pressure):
            flusher.run()

    async def flush_everything(self) -> None:
        """Flushes every log, at a clean shutdown."""
        flusher = self._broker.store.flusher
        if flusher is None:
            return
        logs = [log for log in self._broker.file_logs() if log.failed is None and log.is_dirty]
        for log in logs:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.writer.when_written(log.end_offset, partial(resolve, written, None))
            await written
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flusher.run(lambda: resolve(done, None), logs, everything=True)
        await done
        active = [log.active for log in self._broker.file_logs() if log.failed is None and log.active.has_spare_space]
        await run_blocking(self._broker.shared.disk.sync_queue, lambda: seal_all(active))

    # -- producers and memory logs ------------------------------------------------------------------------------

    def _expire_producers(self) -> None:
        before = self._broker.clock.now_ms() - self._broker.config.producer_id_expiration_ms
        for partition in self._broker.partitions():
            transactions = partition.log.transactions
            partition.log.producers.expire(before, transactions.open_producers)
            transactions.expire(before)

    def _memory_logs(self, new: Topic | None = None) -> list[MemoryLog]:
        topics = [*self._broker.topics, *([new] if new is not None else [])]
        return [
            partition.log
            for topic in topics
            if topic.config.durability is Durability.MEMORY
            for partition in topic.partitions
            if isinstance(partition.log, MemoryLog)
        ]

    def _memory_logs_running_out(self) -> bool:
        return any(log.end_offset + OFFSETS_RESERVED // 2 > log.reserved_end for log in self._memory_logs())

    async def reserve_offsets(self, new: Topic | None = None) -> None:
        """Reserves offsets for memory logs. `new` is a topic that is not visible yet. Raises OSError if the catalog
        cannot be written."""
        async with self._reserving:
            wanted = self._wanted_reservations(new)
            if wanted:
                keys = {(log.key.topic_id, int(log.key.partition)): end for log, end in wanted.items()}
                await self._broker.on_catalog(lambda: self._broker.catalog.reserve_offsets(keys))
                for log, end in wanted.items():
                    log.reserved_end = end

    def _on_reserved(self, done: asyncio.Task[None]) -> None:
        """Reports a failed reservation. A later tick tries again."""
        self._reservation = None
        if done.cancelled():
            return
        error = done.exception()
        failure = "" if error is None else str(error) or repr(error)
        if failure and failure != self._reservation_failure:
            self._broker.shared.report(f"cannot reserve offsets for memory topics: {failure}")
        self._reservation_failure = failure

    def reserve_offsets_blocking(self) -> None:
        """Reserves offsets at start-up. If this fails, memory logs refuse records until a later tick succeeds."""
        wanted = self._wanted_reservations()
        if wanted:
            keys = {(log.key.topic_id, int(log.key.partition)): end for log, end in wanted.items()}
            try:
                self._broker.store.with_reserve(lambda: self._broker.catalog.reserve_offsets(keys))
            except OSError as error:
                self._broker.shared.report(f"memory topics take no records yet: {error}")
                return
            for log, end in wanted.items():
                log.reserved_end = end

    def _wanted_reservations(self, new: Topic | None = None) -> dict[MemoryLog, int]:
        return {
            log: log.end_offset + OFFSETS_RESERVED
            for log in self._memory_logs(new)
            if log.end_offset + OFFSETS_RESERVED // 2 > log.reserved_end
        }
