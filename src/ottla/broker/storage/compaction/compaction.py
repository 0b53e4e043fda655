"""One compaction of one log: a slice of work on a disk thread, a pause, the next slice.

The pauses limit its share of a core and of the disk. Between slices it checks whether it is still valid: the log may
have been deleted, truncated or have failed, or retention may have removed its segments. It then ends, and its output so
far is discarded.

Segments are replaced group by group, starting with the oldest, so that a tombstone is never removed before the records
that it deletes. A swap runs while the flusher is held: no flush, truncation or checkpoint happens between its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from ottla.broker.storage.compaction import swap
from ottla.broker.storage.compaction.ended_transactions import EndedTransactions
from ottla.broker.storage.compaction.mark import write_mark
from ottla.broker.storage.compaction.plan import Plan, groups_of
from ottla.broker.storage.compaction.segment_pieces import UncleanableError
from ottla.broker.storage.compaction.segment_rewrite import SegmentRewrite, fill_map
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.reserve import RESERVE_BYTES
from ottla.broker.storage.segment import Segment
from ottla.broker.storage.segment_writer import HEALING_ERRORS
from ottla.ports import FileSystem
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.key_map import AnyKeyMap, Sifting, keys_that_fit, new_key_map
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher

_SWAPPED = branch("compacted segments are swapped in", __name__)
_DECIDED = branch("a compaction swap is decided", __name__)

T = TypeVar("T")
SYNC_EVERY_BYTES = 8 * 1024 * 1024
"""Sync after this many bytes. One long sync at the end would delay others, and the kernel should not have to write so
much dirty memory at once."""

HORIZON_MS_MAX = 1 << 62
"""Maximum delete horizon. Record timestamps are encoded as 64-bit differences from it."""


class CompactionResult(Enum):
    """How a compaction ended."""

    DONE = "compacted"
    VOID = "the log was truncated or deleted, or has failed, during the compaction"
    NO_SPACE = "the disk is full"
    FAILED = "it cannot be compacted"


@dataclass(slots=True)
class CompactionLimits:
    """The resources that a compaction may use."""

    map_bytes_max: int
    cpu_percent: int
    io_bytes_per_second_max: float


@dataclass(slots=True)
class CompactionOutcome:
    """The result of one compaction."""

    ended: CompactionResult
    reason: str = ""
    read_bytes: int = 0
    removed_records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    is_whole: bool = True
    """False if the keys did not fit into their memory; the next compaction continues from there."""


class Compaction:
    """Compacts one log and calls `done` with the outcome."""

    def __init__(
        self,
        log: FileLog,
        flusher: Flusher,
        plan: Plan,
        limits: CompactionLimits,
        hash_key: bytes,
        done: Callable[[CompactionOutcome], None],
    ) -> None:
        self.log = log
        self._flusher = flusher
        self._plan = plan
        self._limits = limits
        self._done = done
        self._clock = log.shared.clock
        self._queue = log.shared.disk.compaction_queue
        self._files: FileSystem = log.shared.disk.files
        keys_wanted = plan.segments[-1].end_offset - plan.dirty_from
        keys_max = min(keys_wanted, keys_that_fit(limits.map_bytes_max))
        self._keys: AnyKeyMap = new_key_map(keys_max, hash_key)
        self._decided = EndedTransactions(log.transactions.aborted, is_index_saved=log.transactions.aborted.is_saved)
        self._upto = plan.dirty_from
        self._groups = iter(groups_of(plan.segments, log.config.segment_bytes))
        self._rewriting: SegmentRewrite | None = None
        self._unsynced_bytes = 0
        self._outcome = CompactionOutcome(CompactionResult.DONE)
        self._stopped = False

    def begin(self) -> None:
        """Starts with the first slice. Returns at once; `done` is called at the end."""
        plan = self._plan
        self._slices(fill_map(self._files, plan.dirty, plan.dirty_from, self._keys, self._decided), self._on_keys)

    def stop(self) -> None:
        """Stops the compaction because the broker shuts down. Work in progress ends by itself; nothing new begins."""
        self._stopped = True

    # -- slices ------------------------------------------------------------------------------------------------

    def _slices(self, work: Iterator[T], on_slice: Callable[[T | None], int | None]) -> None:
        """Runs the iterator to its end, one slice at a time. `on_slice` gets each value, and None at the end. It
        returns the bytes that the slice has moved, or None to stop."""

        def job() -> tuple[T | None, float]:
            begun_ms = self._clock.monotonic_ms()
            result = next(work, None)
            return result, self._clock.monotonic_ms() - begun_ms

        def done(outcome: tuple[T | None, float] | None, error: BaseException | None) -> None:
            if error is not None or outcome is None:
                self._end_by(error)
            elif self._is_void:
                self._end(CompactionResult.VOID)
            else:
                moved = on_slice(outcome[0])
                if moved is not None and outcome[0] is not None:
                    self._later(self._pause_ms(moved, outcome[1]), again)

        def again() -> None:
            if self._is_void:
                self._end(CompactionResult.VOID)
            else:
                self._queue.call(job, done)

        again()

    def _later(self, pause_ms: float, go_on: Callable[[], None]) -> None:
        if pause_ms > 0:
            self._clock.call_later(pause_ms, go_on)
        else:
            self._clock.call_soon(go_on)

    @property
    def _is_void(self) -> bool:
        return self._stopped or self.log.has_ended or self.log.truncating

    def _pause_ms(self, moved_bytes: int, took_ms: float) -> float:
        """Returns the pause that keeps the limits on the share of the core and of the disk."""
        self._outcome.read_bytes += moved_bytes
        for_core_ms = took_ms * (100 / self._limits.cpu_percent - 1)
        for_disk_ms = moved_bytes / self._limits.io_bytes_per_second_max * 1000 - took_ms
        return max(for_core_ms, for_disk_ms, 0.0)

    # -- the keys ----------------------------------------------------------------------------------------------

    def _on_keys(self, progress: tuple[int, int] | None) -> int | None:
        if progress is not None:
            moved, self._upto = progress
            return moved
        self._outcome.is_whole = self._upto >= self._plan.segments[-1].end_offset
        if self._upto <= self._plan.dirty_from:
            self._end(CompactionResult.FAILED, "log.cleaner.dedupe.buffer.size is too small for the keys of one batch")
        else:
            self._next_group()
        return None

    # -- one group after another -------------------------------------------------------------------------------

    def _next_group(self) -> None:
        group = next(self._groups, None)
        if group is None or group[0].base_offset >= self._upto:
            self._write_mark()
            return
        free_bytes = self._files.free_bytes(self.log.directory)
        if free_bytes < sum(segment.appended_end for segment in group) + 2 * RESERVE_BYTES:
            self._end(CompactionResult.NO_SPACE, "there is no space to rewrite a segment")
            return
        log, config = self.log, self.log.config
        created_ms = max(segment.created_ms for segment in group)
        fresh = Segment(self._files, log.directory, group[0].base_offset, config.index_interval_bytes, created_ms)
        fresh.untimed_ms = max(segment.untimed_ms for segment in group)
        rewriting = self._rewriting = SegmentRewrite(self._files, log.directory, group, fresh, self._decided)
        now_ms = self._clock.now_ms()
        horizon_ms = min(now_ms + config.delete_retention_ms, HORIZON_MS_MAX)
        last_batches = sorted(entry.batches[-1].base_offset for entry in log.producers if entry.batches)
        sifting = Sifting(self._upto, now_ms, horizon_ms, last_batches)
        self._unsynced_bytes = 0

        def on_slice(moved: int | None) -> int | None:
            if moved is None:
                self._on_rewritten(rewriting, group)
                return None
            self._unsynced_bytes += moved
            if self._unsynced_bytes < SYNC_EVERY_BYTES:
                return moved
            self._unsynced_bytes = 0
            self._sync(rewriting, lambda: self._slices(work, on_slice))
            return None

        work = rewriting.run(self._keys, sifting)
        self._slices(work, on_slice)

    def _sync(self, rewriting: SegmentRewrite, then: Callable[[], None]) -> None:
        def synced(error: OSError | None) -> None:
            if error is not None:
                self._end_by(error)
            elif self._is_void:
                self._end(CompactionResult.VOID)
            else:
                then()

        self._queue.sync(rewriting.file, synced)

    def _on_rewritten(self, rewriting: SegmentRewrite, group: list[Segment]) -> None:
        self._outcome.removed_records += rewriting.removed_records
        self._outcome.bytes_before += sum(segment.appended_end for segment in group)
        if rewriting.changed:
            self._outcome.bytes_after += rewriting.fresh.appended_end
            hold = self._flusher.hold
            self._sync(rewriting, lambda: hold(lambda release: self._swap(rewriting, group, release)))
        else:
            self._outcome.bytes_after += sum(segment.appended_end for segment in group)
            self._throw_away()
            self._next_group()

    def _swap(self, rewriting: SegmentRewrite, group: list[Segment], release: Callable[[], None]) -> None:
        """Replaces a group of segments. The flusher is held, so nothing changes until it is released, except by
        retention, which leaves `sealing` segments alone."""
        log, fresh = self.log, rewriting.fresh
        first = log.segments.index(group[0]) if group[0] in log.segments else -1
        if self._is_void or first < 0 or log.segments[first : first + len(group)] != group:
            release()
            self._end(CompactionResult.VOID)
            return
        try:
            for segment in group:
                segment.reader()  # while it still has its name: later readers use this open old file
        except OSError as error:
            release()
            self._end_by(error)
            return
        intended = swap.Swap(fresh.appended_end, tuple(segment.base_offset for segment in group))
        for segment in group:
            segment.sealing = True

        def decide() -> None:
            swap.write_intent(self._files, log.directory, intended)

        def decided(_: None, error: BaseException | None) -> None:
            is_open = isinstance(error, swap.IntentUnknownError)
            if error is not None and not is_open:
                self._let_go(group, release)
                self._end_by(error)
            elif error is not None:
                performed(None, error)
            else:
                _DECIDED()
                log.shared.disk.sync_queue.call(perform, performed)

        def perform() -> None:
            swap.perform(self._files, log.directory, intended)
            fresh.persist_index()

        def performed(_: None, error: BaseException | None) -> None:
            rewriting.close()
            self._rewriting = None  # it is in place, or only the next start can tell
            if error is None and not log.has_ended:
                self._take_place(fresh, group)
            self._let_go(group, release)
            if error is None:
                self._next_group()
            else:
                self._on_swap_failed(error)

        log.shared.disk.sync_queue.call(decide, decided)

    def _let_go(self, group: list[Segment], release: Callable[[], None]) -> None:
        for segment in group:
            segment.sealing = False
        release()

    def _take_place(self, fresh: Segment, group: list[Segment]) -> None:
        _SWAPPED()
        fresh.written_end = fresh.synced_end = fresh.allocated_end = fresh.appended_end
        fresh.entry_durable = True
        segments = self.log.segments
        first = segments.index(group[0])
        segments[first : first + len(group)] = [fresh]
        for segment in group:
            segment.be_replaced()
        # Otherwise readers of the tail cache would find deleted records.
        self.log.shared.tail.forget_below(self.log.writer, fresh.end_offset)

    def _on_swap_failed(self, error: BaseException) -> None:
        """Fails the log, because it is unknown which names are durable. The next start completes the swap."""
        if not self.log.has_ended:
            self.log.fail(error if isinstance(error, OSError) else OSError(str(error)))
        self._end(CompactionResult.FAILED, str(error))

    # -- the end -----------------------------------------------------------------------------------------------

    def _write_mark(self) -> None:
        log, upto = self.log, self._upto

        def job() -> None:
            if not log.deleted:
                write_mark(self._files, log.directory, upto)

        def written(_: None, error: BaseException | None) -> None:
            if error is None:
                log.durable.compacted_end = upto
                log.transactions.aborted.remove_ended_at(self._decided.forgotten)
                self._end(CompactionResult.DONE)
            else:
                self._end_by(error)

        def held(release: Callable[[], None]) -> None:
            # No truncation may happen in between: the mark would refer to records that are truncated.
            if self._is_void:
                release()
                self._end(CompactionResult.VOID)
                return

            def then(result: None, error: BaseException | None) -> None:
                release()
                written(result, error)

            log.shared.disk.sync_queue.call(job, then)

        self._flusher.hold(held)

    def _end_by(self, error: BaseException | None) -> None:
        if self._is_void or isinstance(error, FileNotFoundError):
            self._end(CompactionResult.VOID)
        elif isinstance(error, OSError) and error.errno in HEALING_ERRORS:
            self._end(CompactionResult.NO_SPACE, str(error))
        elif isinstance(error, OSError | UncleanableError | CorruptRecords | TooLarge):
            self._end(CompactionResult.FAILED, str(error))
        else:
            self._end(CompactionResult.FAILED, f"{type(error).__name__}: {error}")

    def _end(self, ended: CompactionResult, reason: str = "") -> None:
        self._throw_away()
        self._outcome.ended, self._outcome.reason = ended, reason
        self._done(self._outcome)

    def _throw_away(self) -> None:
        """Discards the new file. If it cannot be removed now, the next start removes it."""
        rewriting, self._rewriting = self._rewriting, None
        if rewriting is None:
            return
        rewriting.close()
        if not self._stopped:  # the queues accept nothing during shutdown
            # On the queue that created it, so that a later file of the same name is not removed instead.
            self._queue.call(lambda: self._files.remove(rewriting.path), lambda _, __: None)
