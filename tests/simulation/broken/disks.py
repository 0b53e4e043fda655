"""Variants that break the rules between a broker and its disk: the journal, truncations, failed syncs."""

from __future__ import annotations

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flush import Flush
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.journal import recovery as journal_recovery
from ottla.broker.storage.journal import scan
from ottla.broker.storage.startup import journal_truncations as cuts
from ottla.broker.storage.startup import recovery, repair
from ottla.broker.storage.truncation import Truncation
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant, logs
from tests.simulation.log_run import ACKNOWLEDGED, CONTENT, DAMAGE, PRODUCERS

ANY = frozenset({ACKNOWLEDGED, CONTENT, DAMAGE})
APPEND_ACKNOWLEDGED = (
    "self._after_append(segment)\n    if self.is_journaled:\n        self.acknowledged_end = self.end_offset"
)

VARIANTS = (
    Variant(
        "skip the journal's truncate entries",
        rule="journal-order",
        breaks="A start replays appended records that a later truncation removed.",
        edits=(
            Edit(cuts.JournalTruncations, "of", "if entry.kind in (Mutation.TRUNCATE, Mutation.RESET):", "if False:"),
        ),
        checkers=ANY,
        simulation=logs,
        seeds=(0,),
    ),
    Variant(
        "ignore the journal's lap",
        rule="journal-blocks",
        breaks="Blocks that an earlier lap left in a journal file count as the continuation of the present one.",
        edits=(Edit(scan, "_counts", "and header.sequence > released", ""),),
        checkers=ANY,
        simulation=logs,
        seeds=(0,),
    ),
    Variant(
        "retry a failed fsync",
        rule="failed-sync",
        breaks="A failed segment sync is repeated; the kernel has marked the pages clean and reports success.",
        edits=(
            Edit(
                Flusher,
                "_on_flush_failed",
                "log.writer.segment_failed(error if isinstance(error, OSError) else OSError(str(error)))",
                "self.want(log)",
            ),
        ),
        checkers=ANY,
        simulation=logs,
        seeds=(1,),
    ),
    Variant(
        "write anew what was cut off",
        rule="journal-order, failed-sync",
        breaks="A segment that is rewritten from the journal gets records that a truncation removed.",
        edits=(Edit(repair, "_write_anew", "standing_entries(log.shared.read_journal)", "log.shared.read_journal()"),),
        checkers=ANY,
        simulation=logs,
        seeds=(78,),
    ),
    Variant(
        "acknowledge before the journal is durable",
        rule="acknowledged-end",
        breaks="A `disk` log acknowledges appended records before the journal is synced.",
        edits=(
            Edit(FileLog, "append", "self._after_append(segment)", APPEND_ACKNOWLEDGED),
            Edit(FileLog, "append_run", "self._after_append(segment)", APPEND_ACKNOWLEDGED),
            Edit(
                FileLog,
                "on_journaled",
                "self.acknowledged_end = end_offset",
                "self.acknowledged_end = self.end_offset",
            ),
        ),
        checkers=frozenset({ACKNOWLEDGED}),
        simulation=logs,
        seeds=(0,),
    ),
    Variant(
        "give journal space back before the segments are synced",
        rule="journal-space",
        breaks="A checkpoint says that segments are durable although they were only written.",
        edits=(Edit(Flush, "_sync_segments", "if not self._syncs:", "if True:"),),
        checkers=ANY,
        simulation=logs,
        seeds=(1,),
    ),
    Variant(
        "keep the recovery point over a truncation",
        rule="recovered-log",
        breaks="Files are truncated while the checkpoint still has a higher recovery point.",
        edits=(
            Edit(
                Truncation,
                "_journal_it",
                "self._flusher.write_point(log, point, lambda failure: self._cut(point, failure))",
                "self._cut(point, None)",
            ),
        ),
        checkers=ANY,
        simulation=logs,
        seeds=(1,),
    ),
    Variant(
        "truncate without the journal",
        rule="journal-order",
        breaks="A truncation is not journaled, and the journal still has the truncated records.",
        edits=(Edit(Truncation, "_journal_it", "if log.is_journaled:", "if False:"),),
        checkers=ANY,
        simulation=logs,
        seeds=(0,),
    ),
    Variant(
        "keep producers over a truncation",
        rule="duplicates",
        breaks="Producer state from truncated records is kept.",
        edits=(
            Edit(
                FileLog,
                "become",
                "self.epochs, self.producers = fresh.epochs, fresh.producers",
                "self.epochs = fresh.epochs",
            ),
        ),
        checkers=frozenset({PRODUCERS}),
        simulation=logs,
        seeds=(0,),
    ),
    Variant(
        "keep every byte of a segment",
        rule="recovered-log",
        breaks="A recovered `disk` log keeps every byte of its segments, also what was never acknowledged.",
        edits=(
            Edit(
                recovery,
                "open_file_log",
                "if up_to_point or (config.durability is Durability.DISK and trust_checkpoint):",
                "if up_to_point:",
            ),
        ),
        checkers=ANY,
        simulation=logs,
        seeds=(2,),
    ),
    Variant(
        "replay a torn block",
        rule="journal-blocks",
        breaks="The journal's last block is used even if it is torn.",
        edits=(
            Edit(
                journal_recovery,
                "_decide",
                "torn_end = TornEnd(block.path, header.offset, header.sequence)",
                "usable.append(block)",
            ),
        ),
        checkers=ANY,
        simulation=logs,
        seeds=(4,),
    ),
)
