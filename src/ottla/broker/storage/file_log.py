"""A log in segment files: the `disk` and `cache` classes.

    append ----> tail cache (readable at once below the watermark)
       |-------> journal, group commit  ----> acknowledged (`disk`)
       '-------> segment write, gathered ---> acknowledged (`cache`)
                        '---- lazily: sync, checkpoint ----> journal space is free again

Everything here runs on the event loop's thread and never blocks: disk work goes to queues, completions come back.
"""

from __future__ import annotations

from functools import partial

from ottla.broker.storage.append_rejections import refusal_of_any, sentence_for
from ottla.broker.storage.batch_effects import note_batch
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead, Damage, LogEvents
from ottla.broker.storage.damages import Damages
from ottla.broker.storage.durable_state import DurableState
from ottla.broker.storage.file_reads import read_from_segments
from ottla.broker.storage.journal import Mutation, pack_key
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.segment import Segment, unsynced_since_ms
from ottla.broker.storage.segment_space import allocate, allocate_ahead, seal_later
from ottla.broker.storage.segment_writer import SegmentWriter
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
_NO_SPACE = branch("an append is refused because the disk is full", __name__)
_FAILED = branch("a log fails", __name__)

SEALED_FLUSH_MS = 2000
"""How long a full segment of a `cache` log waits for its sync. One that retention removes earlier is never synced."""
HISTORY_MAX = 4096
"""Maximum number of remembered transaction changes. Earlier states are needed only for the next flush."""


class FileLog:
    """Implements `contract.Log` in segment files. `writer` writes them; `durable` says what the next start will
    find."""

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
        self.end_offset = segments[-1].end_offset
        self.acknowledged_end = self.end_offset
        """The end of what the journal has (`disk`), or the segments (`cache`)."""
        self.epochs = state.epochs
        self.producers = state.producers
        self.transactions = state.transactions
        self.transactions.remove_below(start_offset)
        self.failed: OSError | None = None
        self.deleted = False
        self.truncating = False
        """True while the log is being truncated; nothing is appended meanwhile."""
        self.damages = Damages(shared.report)
        self.events: LogEvents | None = None
        self.durable = DurableState(start_offset, shared.clock.now_ms())
        self.is_journaled = config.durability is Durability.DISK
        self.writer = SegmentWriter(shared, directory, self, self.end_offset, is_journaled=self.is_journaled)

    @classmethod
    def empty(cls, shared: LogResources, key: LogKey, directory: str, config: TopicConfig) -> FileLog:
        """Creates a log without records that starts at offset 0. Does no I/O."""
        segment = Segment(shared.disk.files, directory, 0, config.index_interval_bytes, shared.clock.now_ms())
        return cls(shared, key, directory, config, [segment], LogState(), 0)

    # -- how far the log has got ------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the log was deleted or has failed."""
        return self.deleted or self.failed is not None

    @property
    def active(self) -> Segment:
        """The last segment, which takes the appends."""
        return self.segments[-1]

    @property
    def written_end(self) -> int:
        return self.writer.written_end

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
                allocate(self.shared, segment, size_bytes, self.config.segment_bytes)
        except OSError as error:
            _NO_SPACE()
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
        writer = self.writer
        self.shared.tail.add_run(writer, run)
        writer.pending.add_run(segment, position, run)
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
        writer = self.writer
        self.shared.tail.add(writer, header.base_offset, header.next_offset, batch)
        writer.pending.add(segment, position, header.next_offset, batch)
        if self.is_journaled:
            assert self.shared.journal is not None
            self.shared.journal.append_batch(self, header, batch)
        self._after_append(segment)

    def _after_append(self, segment: Segment) -> None:
        """Schedules the segment write and allocates space ahead."""
        if self.transactions.history_length > HISTORY_MAX:
            self.transactions.forget_history(self.acknowledged_end if self.is_journaled else self.end_offset)
        if not self.is_journaled:
            self.shared.unsynced.add(self)
        self.writer.schedule()
        if segment.allocated_end - segment.appended_end < segment.appended_end // 4 and not segment.allocating:
            allocate_ahead(self.shared, segment, self.config.segment_bytes)

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
        self._jump_to(header.next_offset)

    def _jump_to(self, offset: int) -> None:
        """Sets all ends of the log, which has nothing pending or in flight."""
        self.end_offset = self.acknowledged_end = offset
        self.writer.jump_to(offset)

    def _skip_to(self, offset: int) -> None:
        """Records the gap in the journal as damage (safety: journal-order) and continues above it."""
        reason = f"the journal goes on at offset {offset}, what was before it is lost"
        self.damages.record(Damage(self.active.path, self.active.appended_end, self.end_offset, offset, reason))
        self._jump_to(offset)
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
        """Starts a new segment at the log end, in a recycled file if one fits. The previous segment is sealed once all
        its records are written."""
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
        self.writer.when_written(self.end_offset, partial(seal_later, self.shared, sealed))

    # -- acknowledgement and failure --------------------------------------------------------------------------

    def on_journaled(self, end_offset: int) -> None:
        self.acknowledged_end = end_offset
        self.writer.on_journaled(end_offset)
        if self.events is not None:
            self.events.on_acknowledged()

    def on_journal_failed(self, error: OSError) -> None:
        self.fail(error)

    def on_written(self, end_offset: int) -> None:
        self.acknowledged_end = end_offset

    def on_acknowledged(self) -> None:
        if self.events is not None:
            self.events.on_acknowledged()

    def fail(self, error: OSError) -> None:
        """Fails the log. It accepts no more records; acknowledged records stay readable."""
        if self.failed is None:
            _FAILED()
            self.failed = error
            self.writer.stop()
            self.shared.report(f"{self.directory}: the log has failed and takes no more records: {error}")
            if self.events is not None:
                self.events.on_log_failed(error)
            self.writer.run_waits()

    def become(self, fresh: FileLog) -> None:
        """Takes over the state of `fresh`, the same log reopened after a truncation. Nothing is in flight."""
        self.shared.tail.forget(self.writer)
        for segment in self.segments:
            segment.removed = True
            segment.release()
        self.segments = fresh.segments
        self.epochs, self.producers = fresh.epochs, fresh.producers
        self.transactions = fresh.transactions
        self._jump_to(fresh.end_offset)
        is_reset = fresh.start_offset == fresh.end_offset
        self.start_offset = fresh.start_offset if is_reset else max(self.start_offset, fresh.start_offset)
        self.damages = fresh.damages
        self.durable.replace_by(fresh.durable, is_reset=is_reset)

    def mark_deleted(self) -> None:
        """Marks the log as deleted: nothing more is written, and pending waits end."""
        self.deleted = True
        self.writer.stop()
        if self.shared.recycled is not None:
            self.shared.remove_later(self.shared.recycled.forget(self.key))
        self.writer.run_waits()

    # -- reads ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True) -> Slice | ColdRead | Refused:
        newest = self.writer.tail.newest(offset, upto)
        if newest is not None:
            return newest
        while offset < upto:
            if self.writer.tail.covers(offset):
                return self.shared.tail.read(self.writer, offset, max_bytes, upto)
            self.shared.tail.on_missed()
            part = read_from_segments(self, offset, max_bytes, upto, keeps_empty=keeps_empty)
            if not isinstance(part, Slice) or part.buffers or part.next_offset == offset:
                return part
            offset = part.next_offset  # so far there were only batches that compaction has emptied
        return Slice([], 0, offset)

    # -- the log's start --------------------------------------------------------------------------------------

    def advance_start(self, offset: int, done: Completion) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_before(offset)
        if not self.is_journaled or self.shared.journal is None or offset <= self.durable.start_offset:
            done(None)
            return

        def journaled(error: OSError | None) -> None:
            if error is None:
                self.durable.start_offset = max(self.durable.start_offset, offset)
            done(error)

        self.shared.journal.append_mutation(self, Mutation.LOG_START, offset, journaled)

    # -- flushing ---------------------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """True if the checkpoint does not cover the whole log."""
        return not self.durable.covers(self.start_offset, self.end_offset)

    def wants_flush(self, now_ms: int) -> bool:
        """Reports whether a `cache` log is due: a segment has been full for a while, or by flush.messages or
        flush.ms."""
        point = self.durable.recovery_point
        flushed = point.offset if point is not None else self.segments[0].base_offset
        if self.written_end - flushed >= self.config.flush_messages:
            return True
        is_long_full = now_ms - unsynced_since_ms(self.segments, now_ms) >= SEALED_FLUSH_MS
        return is_long_full or now_ms - self.durable.flushed_ms >= self.config.flush_ms

    def close(self) -> None:
        self.shared.tail.forget(self.writer)
        for segment in self.segments:
            segment.close()
