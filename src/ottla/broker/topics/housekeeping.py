"""Periodic work: retention, compaction, flushing and expiry of producers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from functools import partial

from ottla.broker.blocking_jobs import resolve, run_blocking
from ottla.broker.context import BrokerContext
from ottla.broker.partition.partition import Partition
from ottla.broker.storage.compaction.compaction import CompactionLimits
from ottla.broker.storage.compaction.compactor import Candidate, Compactor
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.segment import seal_all
from ottla.broker.topics.archive_progress import ArchiveProgress
from ottla.broker.topics.archive_waits import ArchiveWaits
from ottla.broker.topics.topics import Topic
from ottla.ports import Timer

TICK_MS = 250.0
RETENTION_CHECKS_A_PERIOD = 10
"""A log is checked ten times per retention period, so that even a retention of seconds is exceeded only by a
fraction."""
RETENTION_CHECK_MS_MIN = 250
PRODUCER_EXPIRY_CHECK_MS = 600_000


class Housekeeping:
    """Runs the periodic work of a broker, from one timer."""

    def __init__(self, context: BrokerContext, archive_progress: ArchiveProgress, on_tick: Callable[[], None]) -> None:
        self._context = context
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
        self._on_tick = on_tick
        self.archive_waits = ArchiveWaits(context, archive_progress)
        context.events.config_listeners.append(self.look_at)

    def start(self) -> None:
        """Starts the timer. The first flush, compaction and expiry of producers are due after one interval each."""
        now = self._context.clock.monotonic_ms()
        self._next_flush_ms = now + self._context.config.flush_interval_ms
        self._next_expiry_ms = now + PRODUCER_EXPIRY_CHECK_MS
        self._next_compaction_ms = now + self._context.config.log_cleaner_backoff_ms
        self._arm()

    def stop(self) -> None:
        """Stops the timer, the running compaction and the queries for archive progress."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self.compactor is not None:
            self.compactor.stop()
        self.archive_waits.stop()

    def _arm(self) -> None:
        if not self._stopped:
            self._timer = self._context.clock.call_later(TICK_MS, self._tick)

    def _tick(self) -> None:
        try:
            now = self._context.clock.monotonic_ms()
            self._check_retention(now)
            self._check_flush(now)
            self._check_compaction(now)
            self._check_space()
            if now >= self._next_expiry_ms:
                self._next_expiry_ms = now + PRODUCER_EXPIRY_CHECK_MS
                self._expire_producers()
            self._on_tick()
        finally:
            self._arm()

    # -- retention ---------------------------------------------------------------------------------------------

    def look_at(self, topic: Topic) -> None:
        """Reschedules the partitions of a topic that is new or whose configuration has changed."""
        now = self._context.clock.monotonic_ms()
        for partition in topic.partitions:
            self._plan(partition, now + self._retention_interval_ms(partition))
            if not topic.config.archive_group:
                self.archive_waits.forget(partition)

    def _plan(self, partition: Partition, at: float) -> None:
        self._planned[partition] = at
        self._number += 1
        heapq.heappush(self._retention_due, (at, self._number, partition))

    def _check_retention(self, now: float) -> None:
        wall_ms = self._context.clock.now_ms()
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
        elif self._context.store.flusher is not None:
            apply_retention(log, self._context.store.flusher, wall_ms, partition.high_watermark)

    def _retention_interval_ms(self, partition: Partition) -> float:
        interval = self._context.config.log_retention_check_interval_ms
        retention_ms = partition.topic.config.retention_ms
        if retention_ms >= 0:
            interval = min(interval, retention_ms // RETENTION_CHECKS_A_PERIOD)
        if partition.topic.config.retention_bytes >= 0:
            interval = min(interval, 1000)
        return max(interval, RETENTION_CHECK_MS_MIN)

    # -- compaction --------------------------------------------------------------------------------------------

    def _check_compaction(self, now: float) -> None:
        config, flusher = self._context.config, self._context.store.flusher
        if now < self._next_compaction_ms or flusher is None or not config.log_cleaner_enable:
            return
        self._next_compaction_ms = now + config.log_cleaner_backoff_ms
        limits = CompactionLimits(
            config.log_cleaner_dedupe_buffer_size,
            config.log_cleaner_cpu_percent,
            config.log_cleaner_io_max_bytes_per_second,
        )
        if self.compactor is None:
            self.compactor = Compactor(flusher, limits, lambda: self._context.new_id().bytes)
        self.compactor.limits = limits
        self.compactor.look(self._compacted_logs)

    def _compacted_logs(self) -> Iterator[Candidate]:
        for partition in self._context.partitions():
            if partition.topic.config.is_compacted and isinstance(partition.log, FileLog):
                yield Candidate(partition.log, partition.last_stable_offset)

    # -- space -------------------------------------------------------------------------------------------------

    def _check_space(self) -> None:
        """Reallocates the space reserve after the disk was full. Writes resume once it is held."""
        reserve = self._context.shared.reserve
        if reserve is None or reserve.is_held or self._taking_reserve:
            return
        self._taking_reserve = True

        def taken(held: bool | None, error: BaseException | None) -> None:
            self._taking_reserve = False
            if held:
                self._context.shared.report("disk space is available again; writes resume")

        self._context.shared.disk.sync_queue.call(reserve.hold, taken)

    # -- flushing ----------------------------------------------------------------------------------------------

    def _check_flush(self, now: float) -> None:
        flusher, journal = self._context.store.flusher, self._context.shared.journal
        if flusher is None or flusher.is_running:
            return
        wall_ms = self._context.clock.now_ms()
        for log in list(self._context.shared.unsynced):
            if isinstance(log, FileLog) and log.wants_flush(wall_ms):
                flusher.want(log)
        if now >= self._next_flush_ms:
            self._next_flush_ms = now + self._context.config.flush_interval_ms
            flusher.run(everything=True)
        elif flusher.has_wanted or (journal is not None and journal.under_pressure):
            flusher.run()

    async def flush_everything(self) -> None:
        """Flushes every log, at a clean shutdown."""
        flusher = self._context.store.flusher
        if flusher is None:
            return
        logs = [log for log in self._context.file_logs() if log.failed is None and log.is_dirty]
        for log in logs:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.writer.when_written(log.end_offset, partial(resolve, written, None))
            await written
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flusher.run(lambda: resolve(done, None), logs, everything=True)
        await done
        active = [log.active for log in self._context.file_logs() if log.failed is None and log.active.has_spare_space]
        await run_blocking(self._context.shared.disk.sync_queue, lambda: seal_all(active))

    # -- producers ---------------------------------------------------------------------------------------------

    def _expire_producers(self) -> None:
        before = self._context.clock.now_ms() - self._context.config.producer_id_expiration_ms
        for partition in self._context.partitions():
            transactions = partition.log.transactions
            partition.log.producers.expire(before, transactions.open_producers)
            transactions.expire(before)
