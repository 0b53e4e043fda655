"""Schedules the writes of the journal and notifies the logs.

The disk writes one group at a time. Entries that arrive meanwhile wait in the open group. An idle journal waits for the
end of the event loop's turn, so that all requests of one turn share a write. A group that has reached a certain size is
queued behind the group that is being written, so that the disk continues without waiting for the loop. Smaller groups,
and any further groups, wait until a write has ended. The queue begins a write only after the previous one is on stable
storage, and never after one that failed. A block can therefore say that its predecessor was durable, and a reader knows
that every block but the last was.

A failed write is final (safety: failed-sync): the group is never acknowledged, nothing is ever written again, and each
log that appends now or later is notified of the failure.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.broker.storage.journal.block_chain import BlockChain
from ottla.broker.storage.journal.entries import pack_appends_into
from ottla.broker.storage.journal.format import (
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES,
    Mutation,
    pack_entry_into,
    padded,
)
from ottla.broker.storage.journal.group import Durable, Group, JournaledLog
from ottla.broker.storage.journal.ring import JournalLimits, Ring
from ottla.broker.storage.journal.ring_files import RingFile
from ottla.ports import Clock, Disk, DiskQueue
from ottla.protocol.model.histogram import Histogram
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES, BatchHeader
from ottla.protocol.records.produce_run import BatchRun
from ottla.reach import branch

_FAILED = branch("the journal fails", __name__)
_WAITS_FOR_SPACE = branch("a journal write waits for space in the ring", __name__)

_log = logging.getLogger(__name__)
_APPEND = int(Mutation.APPEND)
_SPARE_GROUPS_MAX = 4


@dataclass(slots=True)
class JournalStats:
    """Counters of the journal's writes."""

    syncs: int = 0
    """Number of groups on stable storage, with one durable write each."""
    bytes_written: int = 0
    """Bytes written, including headers and padding."""
    entries: int = 0
    groups_by_entries: list[int] = field(default_factory=lambda: [0] * 32)
    """Number of groups with [2^(i-1), 2^i) entries, for i from 1 on."""
    sync_s: Histogram = field(default_factory=Histogram)
    """Duration of each durable write, from when it was queued."""


class Journal:
    """The journal of one broker. All calls and callbacks are on the event loop's thread.

    `failed` is the error that ended it, or None.
    """

    def __init__(
        self, queue: DiskQueue, clock: Clock, ring: Ring, journal_id: bytes, released: int, limits: JournalLimits
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._ring = ring
        self._chain = BlockChain(journal_id)
        self._limits = limits
        self._group_bytes_max = min(limits.group_bytes_max, ring.largest_file_bytes)
        self._open = Group()
        self._waiting: deque[Group] = deque()
        self._waiting_bytes = 0
        self._spare_groups: list[Group] = []
        self._in_flight: deque[tuple[Group, RingFile, float]] = deque()
        """Groups given to the disk, oldest first, each with its file and the time at which it was queued."""
        self._busy = False
        """True if a write is in flight, about to start, or waiting for space in the ring."""
        self._starts_soon = False
        """True if `_start` will run at the end of the turn."""
        self._closed = False
        self._on_failed: Callable[[OSError], None] = _ignore
        self._reported_sequence = released
        """The last durable sequence of which every log was notified."""
        self.durable_sequence = released
        self.released_sequence = released
        self.failed: OSError | None = None
        self.stats = JournalStats()
        ring.on_space = self._on_space

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        journal_id: bytes,
        *,
        released: int,
        limits: JournalLimits | None = None,
        on_pressure: Callable[[], None] | None = None,
        on_failed: Callable[[OSError], None] | None = None,
    ) -> Journal:
        """Opens the journal at start-up. Blocking. Every block in the directory may be overwritten from now on.

        `released` is in a durable checkpoint and is at least `Recovered.last_sequence`. Sequences continue above it, so
        a torn block of an earlier run is never mistaken for one of this run.

        `on_pressure` is called when space should be released soon; `on_failed` once, before the waiting logs are
        notified.
        """
        limits = limits or JournalLimits()
        ring = Ring.open(disk, clock, directory, limits)
        ring.on_pressure = on_pressure or ring.on_pressure
        journal = cls(disk.journal_queue, clock, ring, journal_id, released, limits)
        journal._on_failed = on_failed or _ignore
        return journal

    @property
    def idle(self) -> bool:
        """True if everything that was appended is on stable storage, or has failed."""
        return not self._busy

    @property
    def has_room(self) -> bool:
        """False if the ring is full and appends wait for a release. Their requests are not answered meanwhile, so the
        server's limit on request bytes throttles the clients."""
        if self.failed is not None:
            return True  # otherwise callers would wait for space that never comes
        return self._ring.spare_bytes > self._waiting_bytes + self._open.at + self._open.payload_bytes

    @property
    def under_pressure(self) -> bool:
        """True if a release is wanted soon. `oldest` says of what: sync, checkpoint, `release`."""
        return self._ring.under_pressure

    @property
    def total_bytes(self) -> int:
        """The size of the ring on disk."""
        return self._ring.total_bytes

    @property
    def used_bytes(self) -> int:
        """The part of the ring that is written and not released."""
        return self._ring.total_bytes - self._ring.spare_bytes

    def append_batch(self, log: JournaledLog, header: BatchHeader, batch: memoryview) -> None:
        """Journals a batch whose offset and epoch are stamped, and whose CRC was verified against its bytes.

        The batch is not copied, so it must not change until `log.on_journaled` is called.
        """
        size_bytes = len(batch)
        base_offset, batch_length, leader_epoch, _magic, crc, _attributes, last_offset_delta = header[:7]
        if size_bytes != batch_length + LOG_OVERHEAD_BYTES:
            raise ValueError(
                f"a batch of {size_bytes} bytes has a header that says {batch_length + LOG_OVERHEAD_BYTES}"
            )
        group = self._open
        at = group.at
        if at > group.at_max or at + group.payload_bytes + size_bytes > self._group_bytes_max - ENTRY_BYTES:
            group = self._group_for(size_bytes)
            at = group.at
        next_offset = base_offset + last_offset_delta + 1
        pack_entry_into(
            group.headers, at, _APPEND, log.journal_key, base_offset, next_offset, leader_epoch, crc, size_bytes
        )
        group.at = at + ENTRY_BYTES
        group.payload_bytes += size_bytes
        group.buffers.append(batch)
        group.ends[log] = next_offset
        if not self._busy or (len(self._in_flight) == 1 and group.at + group.payload_bytes >= self._limits.early_bytes):
            self._schedule()

    def takes_run(self, run: BatchRun) -> bool:
        """Reports whether these batches fit into the open group."""
        group = self._open
        return group.at + group.payload_bytes + run.size_bytes + len(run) * ENTRY_BYTES <= self._group_bytes_max

    def append_run(self, log: JournaledLog, run: BatchRun) -> None:
        """Journals many batches at once, like `append_batch` for each. The caller has checked `takes_run`."""
        group = self._open
        end = group.at + len(run) * ENTRY_BYTES
        while end > len(group.headers):
            group.grow_headers()
        pack_appends_into(group.headers, group.at, log.journal_key, run.batches)
        group.at = end
        group.payload_bytes += run.size_bytes
        group.buffers += run.batches
        group.ends[log] = run.ends[-1]
        if not self._busy:
            self._schedule()
        if end + group.payload_bytes >= self._limits.early_bytes and (self._starts_soon or len(self._in_flight) == 1):
            self._start()

    def append_mutation(self, log: JournaledLog, kind: Mutation, offset: int, durable: Durable) -> None:
        """Journals a truncation, a new log start or a deletion. `durable` is called when it is on stable storage."""
        if kind is Mutation.APPEND:
            raise ValueError("append batches with append_batch")
        group = self._open
        if group.at > group.at_max or group.size_bytes > self._group_bytes_max - ENTRY_BYTES:
            group = self._group_for(0)
        pack_entry_into(group.headers, group.at, kind, log.journal_key, offset, offset, -1, 0, 0)
        group.at += ENTRY_BYTES
        group.durables.append(durable)
        if kind in (Mutation.TRUNCATE, Mutation.RESET):
            group.ends[log] = offset
        else:
            group.mutated.append(log)
        if not self._busy:
            self._schedule()

    def oldest(self, *, everything: bool = False) -> tuple[int, dict[JournaledLog, int]] | None:
        """Returns the sequence that can be released next, and the logs whose segments must be synced first; None if
        there is nothing.

        The dictionary has each log's end after its last entry in the oldest full files (with `everything`, in
        everything that is durable now), or -1 for a log whose start was moved or that was deleted. A log whose end is
        lower by now was truncated since: sync what it has. A group counts once all its logs were notified: a flush
        covers what a log knows to be durable.
        """
        if not everything:
            return self._ring.oldest(self._reported_sequence)
        if self._reported_sequence <= self.released_sequence:
            return None
        return self._reported_sequence, self._ring.all_ends()

    def release(self, sequence: int) -> None:
        """Releases space. A checkpoint with this sequence is durable, so files with nothing above it are reused."""
        if sequence > self.durable_sequence:
            raise ValueError(f"sequence {sequence} is not durable yet; the last durable one is {self.durable_sequence}")
        self.released_sequence = max(self.released_sequence, sequence)
        self._ring.release(sequence)
        self._on_space()

    def close(self) -> None:
        """Closes the journal. A group in flight is still finished and reported; groups that wait behind it are not."""
        if self._closed:
            return
        self._closed = True
        self._busy = True
        self._group_bytes_max = 0  # sends each append to _group_for, which rejects it
        if not self._in_flight:
            self._ring.close()

    def _group_for(self, payload_bytes: int) -> Group:
        """Returns the open group with space for one more entry: enlarged, or the next one if this one is full."""
        if self._closed:
            raise RuntimeError("the journal is closed")
        group = self._open
        if group.entry_count and group.size_bytes + ENTRY_BYTES + payload_bytes > self._group_bytes_max:
            self._waiting.append(group)
            self._waiting_bytes += group.size_bytes
            group = self._open = self._spare_groups.pop() if self._spare_groups else Group()
        if group.at > group.at_max:
            group.grow_headers()
        return group

    def _schedule(self) -> None:
        if not self._starts_soon:
            self._busy = self._starts_soon = True
            self._clock.call_soon(self._start)

    def _start(self) -> None:
        """Writes the next group, if there is one, it is allowed to start, and the ring has space for it."""
        self._starts_soon = False
        if self._closed:
            return
        if self.failed is not None:
            self._fail_all(self.failed)
            return
        group = self._waiting[0] if self._waiting else self._open
        if group.at == BLOCK_HEADER_BYTES:
            self._busy = bool(self._in_flight)
            return
        block_bytes = padded(group.size_bytes, self._ring.alignment)
        if self._in_flight and not self._may_follow(group, block_bytes):
            return
        sequence = self.durable_sequence + len(self._in_flight) + 1
        place = self._ring.place(block_bytes, sequence)
        if place is None:
            _WAITS_FOR_SPACE()
            return
        self._take(group)
        file, offset = place
        header = self._chain.next_header(file, offset, sequence, block_bytes, group.entry_count)
        self._in_flight.append((group, file, self._clock.seconds()))
        self._queue.write(file.file, offset, group.seal(header), self._on_written)

    def _may_follow(self, group: Group, block_bytes: int) -> bool:
        """Reports whether a block may be queued while another is being written: at most one, if it is large enough, and
        in the same file. A file that is left must be one whose blocks are all durable (`oldest`)."""
        if len(self._in_flight) > 1 or group.size_bytes < self._limits.early_bytes:
            return False
        return self._ring.has_place_beside(block_bytes)

    def _take(self, group: Group) -> None:
        if group is self._open:
            self._open = self._spare_groups.pop() if self._spare_groups else Group()
        else:
            self._waiting.popleft()
            self._waiting_bytes -= group.size_bytes

    def _on_written(self, error: OSError | None) -> None:
        if self.failed is not None:
            return  # it was queued behind the failed write, and its logs were notified
        group, file, began_s = self._in_flight.popleft()
        if error is not None:
            self._fail(error, group)
            return
        self.durable_sequence += 1
        file.ends.update(group.ends)
        for log in group.mutated:
            file.ends.setdefault(log, -1)
        self._count(group, began_s)
        if not self._closed:
            self._start()  # first, so that the disk works while the logs answer their requests
        elif not self._in_flight:
            self._ring.close()
        group.succeed()
        self._reported_sequence += 1
        group.clear()
        if len(self._spare_groups) < _SPARE_GROUPS_MAX:
            self._spare_groups.append(group)

    def _count(self, group: Group, began_s: float) -> None:
        stats = self.stats
        stats.syncs += 1
        stats.sync_s.note(self._clock.seconds() - began_s)
        stats.entries += group.entry_count
        stats.bytes_written += padded(group.size_bytes, self._ring.alignment)
        stats.groups_by_entries[group.entry_count.bit_length()] += 1

    def _fail(self, error: OSError, group: Group) -> None:
        _FAILED()
        _log.error("the journal failed; logs of the class disk accept no more records: %s", error)
        self.failed = error
        try:
            self._on_failed(error)
        except Exception:
            _log.exception("the callback for the journal failure failed")
        self._waiting.extendleft(reversed([group, *(behind for behind, _, _ in self._in_flight)]))
        self._in_flight.clear()  # the disk's queue has ended and writes none of them
        self._fail_all(error)
        if self._closed:
            self._ring.close()

    def _fail_all(self, error: OSError) -> None:
        """Notifies every waiting log. Entries that they append while being notified fail in the next turn."""
        groups = [*self._waiting, self._open]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._open = Group()
        self._busy = self._closed
        told: set[JournaledLog] = set()
        for group in groups:
            group.fail(error, told)

    def _on_space(self) -> None:
        if self._closed:
            return
        self._group_bytes_max = min(self._limits.group_bytes_max, self._ring.largest_file_bytes)
        if self._busy:
            self._start()


def _ignore(_error: OSError) -> None: ...
