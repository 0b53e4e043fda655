"""A log in segment files: the `disk` and `cache` classes.

    append ----> tail cache (readable at once below the watermark)
       |-------> journal, group commit  ----> acknowledged (`disk`)
       '-------> segment write, gathered ---> acknowledged (`cache`)
                        '---- lazily: sync, checkpoint ----> journal space is free again

Everything here runs on the event loop's thread and never blocks: disk work goes to queues, completions come back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from ottla.broker.storage.append_rejections import refusal_of_any, sentence_for
from ottla.broker.storage.batch_effects import note_batch
from ottla.broker.storage.batches import BatchList, Slice
from ottla.broker.storage.contract import ColdRead, Damage, LogEvents
from ottla.broker.storage.file_reads import read_from_segments
from ottla.broker.storage.journal import Mutation, pack_key
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.pending_writes import PendingWrite, PendingWrites
from ottla.broker.storage.segment import ALLOCATION_BYTES_MIN, Segment, unsynced_since_ms
from ottla.broker.storage.startup.checkpoint import RecoveryPoint
from ottla.broker.storage.startup.state_file import LogState
from ottla.ports import Completion
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.produce_run import BatchRun
from ottla.reach import branch

_ROLLED = branch("a segment is rolled", __name__)

LAZY_WRITE_BYTES = 1024 * 1024
EARLY_WRITE_BYTES = 256 * 1024
"""With this many pending bytes a `cache` log writes at once instead of at the end of the turn."""
SEALED_FLUSH_MS = 2000
"""How long a full segment of a `cache` log waits for its sync. One that retention removes earlier is never synced."""
RETRY_FULL_DISK_MS = 500.0
HISTORY_MAX = 4096
"""Maximum number of remembered transaction changes. Earlier states are needed only for the next flush."""
HEALING_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class FileLog:
    def __init__(
        self,
        shared: LogResources,
        key: LogKey,
        directory: str,
        config: TopicConfig,
        segments: list[Segment],
        state: LogState,
        start_offset: int,
    ) -> None:
        self.shared = shared
        self.key = key
        self.journal_key = pack_key(key)
        self.directory = directory
        self.config = config
        self.segments = segments
        self.start_offset = start_offset
        self._durable_start = start_offset
        self.end_offset = segments[-1].end_offset
        self.epochs = state.epochs
        self.producers = state.producers
        self.transactions = state.transactions
        self.transactions.remove_below(start_offset)
        self.tail = BatchList()
        self.failed: OSError | None = None
        self.deleted = False
        self.damages: list[Damage] = []
        self.events: LogEvents | None = None
        self.recovery_point: RecoveryPoint | None = None
        """The recovery point in the durable checkpoint."""
        self.state_offset = 0
        """The durable state file covers everything below. Segments above it are still needed to rebuild the state."""
        self.compacted_end = 0
        self.flushed_ms = shared.clock.now_ms()
        self.is_journaled = config.durability is Durability.DISK
        self._journaled_end = self.end_offset
        self._written_end = self.end_offset
        self._pending = PendingWrites()
        self._write_due = False
        self._beginning_writes = False
        self._waits_to_write_again = False
        self.frozen = False
        self.truncating = False
        """True while the log is being truncated; nothing is appended meanwhile."""
        self.repair: Callable[[OSError], None] | None = None
        """Rewrites segments from the journal after one of their files failed."""
        self._end_waits: list[tuple[int, Callable[[], None]]] = []

    @classmethod
    def empty(cls, shared: LogResources, key: LogKey, directory: str, config: TopicConfig) -> FileLog:
        segment = Segment(shared.disk.files, directory, 0, config.index_interval_bytes, shared.clock.now_ms())
        return cls(shared, key, directory, config, [segment], LogState(), 0)

    # -- how far the log has got ------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        return self.deleted or self.failed is not None

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def written_end(self) -> int:
        return self._written_end

    @property
    def acknowledged_end(self) -> int:
        return self._journaled_end if self.is_journaled else self._written_end

    @property
    def size_bytes(self) -> int:
        return sum(segment.appended_end for segment in self.segments)

    @property
    def newest_ms(self) -> int:
        return next((each.max_timestamp for each in reversed(self.segments) if each.appended_end), -1)

    # -- append -----------------------------------------------------------------------------------------------

    def refusal(self, size_bytes: int, record_count: int = 1) -> Refused | None:
        """Makes room before anything is promised: a full disk is found here, not after append (safety: full-disk)."""
        refused = refusal_of_any(self)
        if refused is not None:
            return refused
        try:
            if self._must_roll(size_bytes):
                self.roll()
            segment = self.active
            if segment.appended_end + size_bytes > segment.allocated_end:
                self._allocate(segment, size_bytes)
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, sentence_for(error, self.directory))
        return None

    def takes_run(self, run: BatchRun) -> bool:
        """Reports whether these batches can be appended without preparation. If not, they are appended one by one, and
        the first of them makes room or is rejected."""
        segment, size_bytes, journal = self.segments[-1], run.size_bytes, self.shared.journal
        if segment.appended_end + size_bytes > segment.allocated_end or self._must_roll(size_bytes):
            return False
        if self.is_journaled and (journal is None or not journal.takes_run(run)):
            return False
        return refusal_of_any(self) is None

    def append_run(self, run: BatchRun) -> None:
        """Appends many batches, like `append`, except that their producer state is already recorded."""
        segment = self.segments[-1]
        position = segment.append_run(run)
        self.epochs.note(run.leader_epoch, run.bases[0])
        self.end_offset = run.ends[-1]
        self.shared.tail.add_run(self, run)
        self._pending.add_run(segment, position, run)
        if self.is_journaled:
            assert self.shared.journal is not None
            self.shared.journal.append_run(self, run)
        self._after_append(segment)

    def append(self, header: BatchHeader, batch: memoryview) -> None:
        segment = self.active
        position = segment.append(header, len(batch))
        if header.max_timestamp < 0:
            segment.untimed_ms = self.shared.clock.now_ms()
        note_batch(header, batch, self)
        self.end_offset = header.next_offset
        self.shared.tail.add(self, header.base_offset, header.next_offset, batch)
        self._pending.add(segment, position, header.next_offset, batch)
        if self.is_journaled:
            assert self.shared.journal is not None
            self.shared.journal.append_batch(self, header, batch)
        self._after_append(segment)

    def _after_append(self, segment: Segment) -> None:
        """Schedules the segment write and allocates space ahead."""
        if self.transactions.history_length > HISTORY_MAX:
            self.transactions.forget_history(self.acknowledged_end if self.is_journaled else self.end_offset)
        if self.is_journaled:
            if self._pending.size_bytes >= LAZY_WRITE_BYTES:
                self.write_now()
            elif not self._write_due:
                self._write_due = True
                self.shared.turns.later(self)
        else:
            self.shared.unsynced.add(self)
            if self._pending.size_bytes >= EARLY_WRITE_BYTES:
                self.write_now()
            elif not self._write_due:
                self._write_due = True
                self.shared.turns.this_turn(self)
        if segment.allocated_end - segment.appended_end < segment.appended_end // 4 and not segment.allocating:
            self._allocate_ahead(segment)

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Writes a batch from the journal to the segments, which lack it. Blocking, at start-up; the flush at the end
        of the recovery makes it durable."""
        if header.base_offset != self.end_offset:
            self._skip_to(header.base_offset)
        elif self._must_roll(len(batch)):
            self.roll()
        segment = self.active
        position = segment.append(header, len(batch))
        segment.file.write_at(position, [batch])
        segment.written_end = segment.appended_end
        segment.allocated_end = max(segment.allocated_end, segment.appended_end)
        note_batch(header, batch, self)
        self.end_offset = header.next_offset
        self._written_end = self._journaled_end = self.end_offset

    def _skip_to(self, offset: int) -> None:
        """Records the gap in the journal as damage (safety: journal-order) and continues above it."""
        reason = f"the journal goes on at offset {offset}, what was before it is lost"
        self.add_damage(Damage(self.active.path, self.active.appended_end, self.end_offset, offset, reason))
        self.end_offset = self._written_end = self._journaled_end = offset
        self.roll()

    def _must_roll(self, size_bytes: int) -> bool:
        active = self.active
        if active.appended_end == 0:
            return False
        if active.appended_end + size_bytes > self.config.segment_bytes:
            return True
        if self.end_offset - active.base_offset > 2**31 - 2**20:
            return True
        age_ms_max = min(self.config.segment_ms, self.config.compaction_lag_ms_max)
        return self.shared.clock.now_ms() - active.created_ms >= age_ms_max

    def roll(self) -> None:
        _ROLLED()
        sealed = self.active
        now_ms = self.shared.clock.now_ms()
        fresh = Segment(
            self.shared.disk.files, self.directory, self.end_offset, self.config.index_interval_bytes, now_ms
        )
        if self.shared.recycled is not None:
            monotonic_ms = self.shared.clock.monotonic_ms()
            size = self.shared.recycled.take(self.key, fresh.path, self.config.segment_bytes, monotonic_ms)
            if size is not None:
                fresh.adopt_space(size)
        self.segments.append(fresh)
        self.when_written(self.end_offset, lambda: self._seal(sealed))

    def _seal(self, segment: Segment) -> None:
        """Seals a full segment. Retention must wait until then: the truncation could otherwise hit a recycled file."""
        segment.sealing = True

        def sealed(_: None, error: BaseException | None) -> None:
            segment.sealing = False
            if error is not None and not segment.removed:
                self.shared.report(f"{segment.path}: could not be sealed: {error}")

        def seal() -> None:
            segment.seal()
            segment.persist_index()

        self.shared.disk.segment_queue.call(seal, sealed)

    # -- space ------------------------------------------------------------------------------------------------

    def _allocate(self, segment: Segment, size_bytes: int) -> None:
        """Allocates space synchronously: for a segment's first batches, or if the writer outran `_allocate_ahead`."""
        start, length = segment.next_allocation(self.config.segment_bytes)
        missing = segment.appended_end + size_bytes - start
        length = max(length, missing)
        try:
            segment.file.allocate(start, length)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if self.shared.recycled is not None:  # files that wait to be recycled are given up
                self.shared.remove_later(self.shared.recycled.give_up())
            # The last bytes of a disk still suffice for this batch.
            segment.file.allocate(start, max(missing, ALLOCATION_BYTES_MIN))
            length = max(missing, ALLOCATION_BYTES_MIN)
        segment.allocated_end = start + length

    def _allocate_ahead(self, segment: Segment) -> None:
        if segment.allocated_end >= self.config.segment_bytes:
            return
        start, length = segment.next_allocation(self.config.segment_bytes)
        segment.allocating = True

        def done(_: None, error: BaseException | None) -> None:
            segment.allocating = False
            if error is None:
                segment.allocated_end = max(segment.allocated_end, start + length)

        file = segment.file
        self.shared.disk.segment_queue.call(lambda: file.allocate(start, length), done)

    # -- segment writes ---------------------------------------------------------------------------------------

    def write_now(self) -> None:
        """Begins the next segment write, if none is in flight and something is pending. A write may end before its call
        returns; the loop then continues with the next."""
        self._write_due = False
        if self._beginning_writes:
            return
        self._beginning_writes = True
        while not (self.frozen or self.has_ended or self._waits_to_write_again):
            write = self._pending.begin(self._journaled_end if self.is_journaled else self.end_offset)
            if write is None:
                break
            done = partial(self._on_written, write)
            try:
                file = write.segment.file
            except OSError as error:
                done(error)
            else:
                self.shared.disk.segment_queue.write(file, write.position, write.batches, done)
        self._beginning_writes = False

    def _on_written(self, write: PendingWrite, error: OSError | None) -> None:
        if not self._pending.end(write, is_written=error is None):
            self.write_now()
            return
        if error is not None:
            self._on_write_failed(error)
            return
        write.segment.written_end = write.position + write.size_bytes
        self._written_end = write.end_offset
        self.shared.tail.on_written(self)
        if not self.is_journaled or self._pending.size_bytes >= LAZY_WRITE_BYTES or self._end_waits:
            self.write_now()
        self._run_end_waits()
        if not self.is_journaled:
            self._acknowledged()

    def _on_write_failed(self, error: OSError) -> None:
        """Retries after a full disk: the same bytes go to the same place (safety: one-history). After any other error,
        the segment is rewritten from the journal, or the log fails."""
        if error.errno not in HEALING_ERRORS:
            self.segment_failed(error)
            return
        self.shared.report(sentence_for(error, self.directory))
        self._waits_to_write_again = True
        self.shared.clock.call_later(RETRY_FULL_DISK_MS, self._write_again)

    def _write_again(self) -> None:
        self._waits_to_write_again = False
        self.write_now()

    def segment_failed(self, error: OSError) -> None:
        """Handles a failed write or sync of a segment. It is never retried on the same file (safety: failed-sync)."""
        if self.repair is not None and self.is_journaled:
            self.repair(error)
        else:
            self.fail(error)

    def freeze_writes(self) -> None:
        """Suspends segment writes. Appends continue in memory and in the journal."""
        self.frozen = True

    def thaw_writes(self, written_end: int) -> None:
        """Resumes segment writes. The segments hold everything below `written_end`."""
        self.frozen = False
        self._pending.drop_below(written_end)
        self._written_end = max(self._written_end, written_end)
        self.shared.tail.on_written(self)
        self._run_end_waits()
        self.write_now()

    def bytes_below(self, offset: int, segment: Segment) -> int:
        """Returns how many bytes of a segment lie below an offset, which is at or above the written end."""
        return segment.appended_end - self._pending.bytes_above(offset, segment)

    def when_written(self, offset: int, callback: Callable[[], None]) -> None:
        """Runs the callback once everything below the offset is in the segments (for `disk`, also in the journal), or
        once the log has failed or was deleted, after which nothing is written."""
        if self.has_ended or (self._written_end >= offset and not self.frozen):
            callback()
            return
        self._end_waits.append((offset, callback))
        self.write_now()

    def _run_end_waits(self) -> None:
        if self._end_waits and (self.has_ended or not self.frozen):
            written = float("inf") if self.has_ended else self._written_end
            due = [callback for offset, callback in self._end_waits if offset <= written]
            self._end_waits = [wait for wait in self._end_waits if wait[0] > written]
            for callback in due:
                callback()

    # -- acknowledgement and failure --------------------------------------------------------------------------

    def on_journaled(self, end_offset: int) -> None:
        self._journaled_end = end_offset
        if self._end_waits or self._pending.size_bytes >= LAZY_WRITE_BYTES:
            self.write_now()
        elif self._pending and not self._write_due:
            self._write_due = True
            self.shared.turns.later(self)
        self._acknowledged()

    def on_journal_failed(self, error: OSError) -> None:
        self.fail(error)

    def _acknowledged(self) -> None:
        if self.events is not None:
            self.events.on_acknowledged()

    def fail(self, error: OSError) -> None:
        """Fails the log. It accepts no more records; acknowledged records stay readable."""
        if self.failed is None:
            self.failed = error
            self.shared.report(f"{self.directory}: the log has failed and takes no more records: {error}")
            if self.events is not None:
                self.events.on_log_failed(error)
            self._run_end_waits()

    def become(self, fresh: FileLog) -> None:
        """Takes over the state of `fresh`, the same log reopened after a truncation. Nothing is in flight."""
        self.shared.tail.forget(self)
        for segment in self.segments:
            segment.removed = True
            segment.release()
        self.segments = fresh.segments
        self.epochs, self.producers = fresh.epochs, fresh.producers
        self.transactions = fresh.transactions
        self.end_offset = self._written_end = self._journaled_end = fresh.end_offset
        self.start_offset = max(self.start_offset, fresh.start_offset)
        if fresh.start_offset == fresh.end_offset:
            self.start_offset = self._durable_start = fresh.start_offset
        self.damages = fresh.damages
        self.recovery_point, self.state_offset = fresh.recovery_point, fresh.state_offset
        self.compacted_end = fresh.compacted_end

    def mark_deleted(self) -> None:
        """Marks the log as deleted: nothing more is written, and pending waits end."""
        self.deleted = True
        if self.shared.recycled is not None:
            self.shared.remove_later(self.shared.recycled.forget(self.key))
        self._run_end_waits()

    # -- reads ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True) -> Slice | ColdRead | Refused:
        while offset < upto:
            if self.tail.covers(offset):
                return self.shared.tail.read(self, offset, max_bytes, upto)
            self.shared.tail.on_missed()
            part = read_from_segments(self, offset, max_bytes, upto, keeps_empty=keeps_empty)
            if not isinstance(part, Slice) or part.buffers or part.next_offset == offset:
                return part
            offset = part.next_offset  # so far there were only batches that compaction has emptied
        return Slice([], 0, offset)

    def damage_at(self, offset: int) -> Damage | None:
        return next((each for each in self.damages if each.first_offset <= offset < each.next_offset), None)

    def add_damage(self, damage: Damage) -> None:
        if damage not in self.damages:
            self.damages.append(damage)
            self.shared.report(str(damage))

    # -- the log's start --------------------------------------------------------------------------------------

    def advance_start(self, offset: int, done: Completion) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_before(offset)
        if not self.is_journaled or self.shared.journal is None or offset <= self._durable_start:
            done(None)
            return

        def journaled(error: OSError | None) -> None:
            if error is None:
                self._durable_start = max(self._durable_start, offset)
            done(error)

        self.shared.journal.append_mutation(self, Mutation.LOG_START, offset, journaled)

    # -- flushing ---------------------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """True if the checkpoint does not cover the whole log."""
        point = self.recovery_point
        return point is None or point.offset < self.end_offset or point.start_offset != self.start_offset

    def wants_flush(self, now_ms: int) -> bool:
        """Reports whether a `cache` log is due: a segment has been full for a while, or by flush.messages or
        flush.ms."""
        flushed = self.recovery_point.offset if self.recovery_point is not None else self.segments[0].base_offset
        if self._written_end - flushed >= self.config.flush_messages:
            return True
        is_long_full = now_ms - unsynced_since_ms(self.segments, now_ms) >= SEALED_FLUSH_MS
        return is_long_full or now_ms - self.flushed_ms >= self.config.flush_ms

    def close(self) -> None:
        self.shared.tail.forget(self)
        for segment in self.segments:
            segment.close()
