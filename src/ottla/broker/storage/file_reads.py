"""Reads a log's segments: from the page cache immediately, from the disk on a disk thread.

Every batch from a file is checked against its CRC before it is served. A batch that does not match is reported,
remembered and never served; the batches around it are. The leader epoch is not covered by the CRC: a batch that
disagrees with the log's own epochs is served with the epoch that the log knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead, Damage
from ottla.broker.storage.damages import Damages
from ottla.broker.storage.epochs import LeaderEpochs
from ottla.broker.storage.segment import Segment
from ottla.broker.storage.startup.batch_walk import (
    BadBatch,
    BatchWalk,
    WalkedBatch,
    find_next_valid,
    header_fault,
    intact_batches,
)
from ottla.ports import DataFile, ReadOnlyBuffer
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import HEADER_BYTES, BatchHeader, crc_matches, read_header, stamp
from ottla.protocol.records.validation import first_at_or_after, max_timestamp_record

READ_AHEAD_BYTES = 8 * 1024


class SegmentedLog(Protocol):
    """A log whose segments can be read."""

    segments: list[Segment]
    start_offset: int
    epochs: LeaderEpochs
    damages: Damages

    @property
    def written_end(self) -> int:
        """The offset up to which the batches are in the segment files."""
        ...


class SegmentPosition(NamedTuple):
    """Where to begin reading, and how far the segment is written."""

    segment: Segment
    file: DataFile
    """Kept open during the read: a segment that is removed meanwhile stays readable."""
    position: int
    offset: int
    """The base offset of the batch at that position, according to the index."""
    end: int
    following_base: int
    """The base offset of the next segment (for the active segment, the written end)."""


def segment_at(segments: list[Segment], offset: int) -> int:
    """Returns the index of the segment that contains the offset; 0 for an offset before the first one."""
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def place_of(log: SegmentedLog, offset: int) -> SegmentPosition:
    """Returns where to begin reading for an offset."""
    index = segment_at(log.segments, offset)
    # A segment's last offsets may be missing (compaction, damage); then the next segment has the following ones.
    while offset >= log.segments[index].end_offset and index + 1 < len(log.segments):
        index += 1
    segment = log.segments[index]
    last = index + 1 == len(log.segments)
    following = log.written_end if last else log.segments[index + 1].base_offset
    relative, position = segment.index.entry_for_offset(max(offset - segment.base_offset, 0))
    return SegmentPosition(
        segment, segment.reader(), position, segment.base_offset + relative, segment.written_end, following
    )


def read_from_segments(
    log: SegmentedLog, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True
) -> Slice | ColdRead | Refused:
    """Reads whole batches. With `keeps_empty=False`, empty batches are left out. If there are only empty batches so
    far, the slice is empty and continues after them; at the end of the readable range it holds the last one, so that
    the reader learns its position."""
    damage = log.damages.at(offset)
    if damage is not None:
        return _refused(damage)
    try:
        place = place_of(log, offset)
    except OSError as error:
        return Refused(ErrorCode.kafka_storage_error, str(error))
    wanted = SegmentRead(offset, max_bytes, upto, keeps_empty)
    data = place.file.read_cached(place.position, _length_to_read(place, wanted))
    if data is not None:
        taken = take_batches(data, place.offset, wanted, log.epochs)
        if taken is not None:
            return taken
    place.segment.readers += 1
    epochs = log.epochs.copy()  # the disk thread needs a copy that does not change
    return ColdRead(lambda: _read_cold(log, place, wanted, epochs), place.segment.end_read)


def _length_to_read(place: SegmentPosition, wanted: SegmentRead) -> int:
    return min(wanted.max_bytes + READ_AHEAD_BYTES, place.end - place.position)


class SegmentRead(NamedTuple):
    """The parameters of a read."""

    offset: int
    max_bytes: int
    upto: int
    keeps_empty: bool


def take_batches(data: ReadOnlyBuffer, data_offset: int, wanted: SegmentRead, epochs: LeaderEpochs) -> Slice | None:
    """Takes the wanted batches out of a piece of a segment that begins with the batch at `data_offset`. None if the
    piece is too short or inconsistent, so that the thorough path has to decide."""
    offset, max_bytes, upto, keeps_empty = wanted
    view = memoryview(data)
    at, size, first, empty_at = 0, 0, -1, -1
    next_offset = offset
    expected = data_offset
    while at + HEADER_BYTES <= len(view):
        header = read_header(view, at)
        if header_fault(header, expected) is not None:
            return None
        expected = header.next_offset
        end = at + header.size_bytes
        if header.next_offset > upto:
            # The batch is above the bound, if its header can be trusted.
            if first < 0 and (end > len(view) or not crc_matches(view[at:end], header)):
                return None
            break
        if header.next_offset > offset:
            if first < 0 and end > len(view):
                return None
            if end > len(view) or (first >= 0 and end - first > max_bytes):
                break
            if not crc_matches(view[at:end], header) or epochs.epoch_at(header.next_offset - 1) != header.leader_epoch:
                return None
            next_offset = header.next_offset
            if header.record_count == 0 and not keeps_empty:
                empty_at = at
            else:
                first = at if first < 0 else first
                size = end - first
                if size >= max_bytes:
                    break
        at = end
    if first >= 0:
        taken = view[first : first + size]
        return Slice([taken], size, next_offset) if empty_at < first else _without_empty(taken, next_offset)
    if empty_at >= 0:
        return Slice([], 0, next_offset) if next_offset < upto else _only(view[empty_at:], next_offset)
    return Slice([], 0, offset) if at + HEADER_BYTES <= len(view) else None


def _only(empty: memoryview, next_offset: int) -> Slice:
    return Slice([empty[:HEADER_BYTES]], HEADER_BYTES, next_offset)


def _without_empty(batches: memoryview, next_offset: int) -> Slice:
    """Returns the batches that have records, in as few pieces as possible."""
    pieces: list[memoryview] = []
    at = begin = 0
    while at < len(batches):
        header = read_header(batches, at)
        if header.record_count == 0:
            if begin < at:
                pieces.append(batches[begin:at])
            begin = at + header.size_bytes
        at += header.size_bytes
    if begin < at:
        pieces.append(batches[begin:at])
    return Slice(pieces, sum(map(len, pieces)), next_offset)


def _read_cold(log: SegmentedLog, place: SegmentPosition, wanted: SegmentRead, epochs: LeaderEpochs) -> Slice | Refused:
    """Reads on a disk thread. If the batches are inconsistent, it walks from one to the next with every check, and
    skips damage that lies before the offset."""
    found_there = place.file.read_at(place.position, _length_to_read(place, wanted))
    taken = take_batches(found_there, place.offset, wanted, epochs)
    if taken is not None:
        return taken
    offset = wanted.offset
    while True:
        walk = BatchWalk(place.file, place.position, place.end, verify=True, next_offset=place.offset)
        found = _find(walk, wanted)
        if found is not None:
            first, end, next_offset = found
            data = _with_known_epochs(memoryview(place.file.read_at(first, end - first)), epochs)
            if wanted.keeps_empty or end - first == HEADER_BYTES:
                return Slice([data], len(data), next_offset)
            return _without_empty(data, next_offset)
        if walk.bad is None:
            return Slice([], 0, offset)
        if walk.bad.position == place.position and not _index_is_right(place):
            # The index only speeds up look-ups: a wrong one costs a walk over the segment, never a record.
            place = place._replace(position=0, offset=place.segment.base_offset)
            continue
        if place.segment not in log.segments:
            return Slice([], 0, offset)  # it was truncated or expired meanwhile
        damage = describe_damage(place, walk.bad, walk.next_offset)
        log.damages.record(damage)
        if damage.first_offset <= offset < damage.next_offset:
            return _refused(damage)
        intact = find_next_valid(place.file, walk.bad.position, place.end, damage.first_offset, place.following_base)
        if intact is None:
            return Slice([], 0, offset)
        place = place._replace(position=intact.position, offset=intact.header.base_offset)


def _with_known_epochs(batches: memoryview, epochs: LeaderEpochs) -> memoryview:
    at = 0
    while at < len(batches):
        header = read_header(batches, at)
        known = epochs.epoch_at(header.next_offset - 1)
        if known not in (-1, header.leader_epoch):
            if batches.readonly:
                batches = memoryview(bytearray(batches))
            stamp(batches[at : at + HEADER_BYTES], header.base_offset, known)
        at += header.size_bytes
    return batches


def _find(walk: BatchWalk, wanted: SegmentRead) -> tuple[int, int, int] | None:
    """Returns the (position, end, next offset) of the wanted batches. If there are only unwanted empty batches, it
    returns the last of them, because a reader has to make progress."""
    first = end = next_offset = -1
    empty: tuple[int, int, int] | None = None
    for position, header, _ in walk:
        is_too_much = first >= 0 and position + header.size_bytes - first > wanted.max_bytes
        if header.next_offset > wanted.upto or is_too_much:
            break
        if header.next_offset > wanted.offset:
            if header.record_count == 0 and not wanted.keeps_empty:
                empty = position, position + header.size_bytes, header.next_offset
                continue
            first = position if first < 0 else first
            end = position + header.size_bytes
            next_offset = header.next_offset
            if end - first >= wanted.max_bytes:
                break
    return (first, end, next_offset) if first >= 0 else empty


def _index_is_right(place: SegmentPosition) -> bool:
    """Reports whether the index is right about the batch: a walk over the preceding headers must arrive at its position
    and offset."""
    walk = BatchWalk(place.file, 0, place.position, verify=False, next_offset=place.segment.base_offset)
    for _ in walk:
        pass
    return walk.bad is None and walk.position == place.position and walk.next_offset == place.offset


def describe_damage(place: SegmentPosition, bad: BadBatch, next_offset: int) -> Damage:
    """Describes the damage at a bad batch, up to where intact batches resume."""
    first_offset = max(next_offset, place.segment.base_offset)
    found = find_next_valid(place.file, bad.position, place.end, first_offset, place.following_base)
    resumes_at = found.header.base_offset if found is not None else place.following_base
    return Damage(place.segment.path, bad.position, first_offset, max(resumes_at, first_offset + 1), bad.reason)


def _refused(damage: Damage) -> Refused:
    return Refused(ErrorCode.corrupt_message, str(damage))


# -- by time: blocking, on a disk thread; the caller has waited until everything is in the segments, and holds them --


class TimedOffset(NamedTuple):
    """A record's timestamp and offset."""

    timestamp_ms: int
    offset: int


def _batches_of(segment: Segment, position: int) -> Iterator[WalkedBatch]:
    try:
        file = segment.reader()
    except FileNotFoundError:  # it expired meanwhile
        return
    yield from intact_batches(file, position, segment.written_end)


def find_offset_for_time(log: SegmentedLog, segments: list[Segment], timestamp_ms: int) -> TimedOffset | None:
    """Finds the first record at or after a time, exact to the record."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        position = segment.index.position_for_time(timestamp_ms)
        for _, header, batch in _batches_of(segment, position):
            if header.max_timestamp >= timestamp_ms and header.next_offset > log.start_offset:
                found = first_at_or_after(batch, timestamp_ms, from_offset=log.start_offset)
                if found is not None:
                    return TimedOffset(*found)
    return None


def find_max_timestamp(segments: list[Segment]) -> TimedOffset | None:
    """Finds the record with the highest timestamp; the first of them if there are several.

    The maximum that a segment keeps is only a bound: it may belong to a batch that is not written yet or cannot be
    read.
    """
    best: tuple[BatchHeader, bytes] | None = None
    for segment in sorted(segments, key=lambda candidate: candidate.max_timestamp, reverse=True):
        if segment.max_timestamp < 0 or (best is not None and best[0].max_timestamp >= segment.max_timestamp):
            break
        latest = _latest_in(segment)
        if latest is not None and (best is None or latest[0].max_timestamp > best[0].max_timestamp):
            best = latest
    found = max_timestamp_record(best[1]) if best is not None else None
    return TimedOffset(*found) if found is not None else None


def _latest_in(segment: Segment) -> tuple[BatchHeader, bytes] | None:
    """Returns the batch with the segment's highest timestamp, where the index locates it; otherwise the highest that is
    found."""
    latest: tuple[BatchHeader, bytes] | None = None
    for start in (segment.index.position_for_time(segment.max_timestamp), 0):
        for _, header, batch in _batches_of(segment, start):
            if header.record_count == 0:
                continue
            if header.max_timestamp >= 0 and (latest is None or header.max_timestamp > latest[0].max_timestamp):
                latest = header, bytes(batch)
            if header.max_timestamp == segment.max_timestamp:
                return latest
    return latest
