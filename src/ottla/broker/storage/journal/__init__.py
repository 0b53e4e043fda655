"""The journal: one per broker, where every mutation of every `disk` log becomes durable, in a single order.

It uses group commit: requests that arrive while a write is in flight wait for the next write, so one write serves many
requests of all partitions. The ring of files is written in place with direct, synchronous writes. Segments are synced
lazily, and only then is their journal space reused. At start-up, `recover` reads the entries that the segments may
lack.

    start-up    recovered = recover(files, directory, journal_id, released)
                replay recovered.entries() into the segments, sync them,
                write a durable checkpoint with recovered.last_sequence
                journal = Journal.open(disk, clock, directory, journal_id, released=recovered.last_sequence)
    running     journal.append_batch(log, header, batch)   ->   log.on_journaled(end_offset)
    flushing    sequence, ends = journal.oldest()
                sync the segments of those logs, write a durable checkpoint with `sequence`
                journal.release(sequence)

The modules: `format` (the bytes of a block), `group` (the contents of one write), `ring` and `ring_files` (where it is
written), `block_chain` (how blocks refer to each other), `journal` (when they are written), `recovery` and `scan`
(reading them back).
"""

from __future__ import annotations

from ottla.broker.storage.journal.format import JOURNAL_ID_BYTES, Mutation, pack_key
from ottla.broker.storage.journal.group import JournaledLog
from ottla.broker.storage.journal.journal import Journal, JournalStats
from ottla.broker.storage.journal.recovery import JournalDamage, JournalEntry, RecoveredJournal, TornEnd, recover
from ottla.broker.storage.journal.ring import JournalLimits

__all__ = [
    "JOURNAL_ID_BYTES",
    "Journal",
    "JournalDamage",
    "JournalEntry",
    "JournalLimits",
    "JournalStats",
    "JournaledLog",
    "Mutation",
    "RecoveredJournal",
    "TornEnd",
    "pack_key",
    "recover",
]
