"""Chooses the next log to compact: the dirtiest, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.storage.compaction.compaction import Compaction, CompactionLimits, CompactionOutcome, CompactionResult
from ottla.broker.storage.compaction.plan import Plan, must_roll_for_compaction, plan_for
from ottla.broker.storage.file_log import FileLog

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher

WAIT_AFTER_FAILURE_MS = 60_000.0
"""Backoff after a log could not be compacted or the disk was full."""


class Candidate(NamedTuple):
    """A log that may be compacted, up to its last stable offset."""

    log: FileLog
    last_stable_offset: int


class Compactor:
    """Runs compactions, on the event loop's thread. `look` is called periodically."""

    def __init__(self, flusher: Flusher, limits: CompactionLimits, new_hash_key: Callable[[], bytes]) -> None:
        self._flusher = flusher
        self.limits = limits
        self._new_hash_key = new_hash_key
        self._running: Compaction | None = None
        self._not_before_ms: dict[FileLog, float] = {}
        self._told: dict[FileLog, str] = {}
        self.outcomes: dict[CompactionResult, int] = dict.fromkeys(CompactionResult, 0)
        """Number of compactions by the way they ended."""
        self.removed_records = 0
        self.reclaimed_bytes = 0

    @property
    def is_running(self) -> bool:
        """True while a log is being compacted."""
        return self._running is not None

    def look(self, candidates: Callable[[], Iterable[Candidate]]) -> None:
        """Compacts the log that needs it most, and continues until none does."""
        if self._running is not None:
            return
        found = self._choose(candidates())
        if found is None:
            return
        log, plan = found

        def done(outcome: CompactionOutcome) -> None:
            self._running = None
            self._note(log, outcome)
            if outcome.ended is CompactionResult.DONE:
                self.look(candidates)

        self._running = Compaction(log, self._flusher, plan, self.limits, self._new_hash_key(), done)
        self._running.begin()

    def stop(self) -> None:
        """Stops the running compaction: work in progress ends by itself, and nothing new begins."""
        if self._running is not None:
            self._running.stop()

    def _choose(self, candidates: Iterable[Candidate]) -> tuple[FileLog, Plan] | None:
        best: tuple[FileLog, Plan] | None = None
        for log, last_stable_offset in candidates:
            clock = log.shared.clock
            now_ms = clock.now_ms()
            if log.has_ended:
                self._not_before_ms.pop(log, None)
                self._told.pop(log, None)
                continue
            if log.truncating or clock.monotonic_ms() < self._not_before_ms.get(log, 0.0):
                continue
            if must_roll_for_compaction(log, now_ms):
                log.roll()
            plan = plan_for(log, last_stable_offset, now_ms)
            if plan is not None and (best is None or _urgency(plan) > _urgency(best[1])):
                best = log, plan
        return best

    def _note(self, log: FileLog, outcome: CompactionOutcome) -> None:
        self.outcomes[outcome.ended] += 1
        self.removed_records += outcome.removed_records
        self.reclaimed_bytes += outcome.bytes_before - outcome.bytes_after
        if outcome.ended in (CompactionResult.DONE, CompactionResult.VOID):
            self._told.pop(log, None)
            self._not_before_ms.pop(log, None)
            return
        self._not_before_ms[log] = log.shared.clock.monotonic_ms() + WAIT_AFTER_FAILURE_MS
        sentence = f"{log.directory}: {outcome.ended.value}: {outcome.reason}"
        if self._told.get(log) != sentence:
            self._told[log] = sentence
            log.shared.report(f"{sentence}. Its records are unchanged; compaction will be retried")


def _urgency(plan: Plan) -> tuple[bool, float]:
    return plan.is_overdue, plan.dirty_ratio
