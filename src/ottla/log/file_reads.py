"""Reading a log's segments: from the page cache at once, from the disk through a disk thread.

Every batch that comes from a file is checked against its CRC before it is served. What does not match is named,
remembered and never served; the batches around it are.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple, Protocol

from ottla.log.batches import Slice
from ottla.log.contract import ColdRead, Damage
from ottla.log.segment import Segment
from ottla.log.walk import BadBatch, Walk, find_next_valid, header_fault
from ottla.model.errors import ErrorCode, Refused
from ottla.ports import DataFile
from ottla.records.batch import HEADER_BYTES, BatchHeader, crc_matches, read_header
from ottla.records.validation import first_at_or_after, max_timestamp_record

READ_AHEAD_BYTES = 8 * 1024


class SegmentedLog(Protocol):
    segments: list[Segment]
    start_offset: int

    def damage_at(self, offset: int) -> Damage | None: ...

    def add_damage(self, damage: Damage) -> None: ...


class Place(NamedTuple):
    """Where to begin reading, and up to where the segment is written."""

    segment: Segment
    file: DataFile
    """Held for as long as the read takes: a segment that is removed meanwhile stays readable."""
    position: int
    offset: int
    """The base offset of the batch at that position, by the index."""
    end: int
    following_base: int
    """The offset at which the next segment begins (of the active one: its end)."""


def segment_at(segments: list[Segment], offset: int) -> int:
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def place_of(log: SegmentedLog, offset: int) -> Place:
    index = segment_at(log.segments, offset)
    # Offsets may be missing at a segment's end (compaction, damage): then the next one has what follows.
    while offset >= log.segments[index].end_offset and index + 1 < len(log.segments):
        index += 1
    segment = log.segments[index]
    last = index + 1 == len(log.segments)
    following = segment.end_offset if last else log.segments[index + 1].base_offset
    relative, position = segment.index.entry_for_offset(max(offset - segment.base_offset, 0))
    return Place(segment, segment.reader(), position, segment.base_offset + relative, segment.written_end, following)


def read_from_segments(log: SegmentedLog, offset: int, max_bytes: int, upto: int) -> Slice | ColdRead | Refused:
    damage = log.damage_at(offset)
    if damage is not None:
        return _refused(damage)
    try:
        place = place_of(log, offset)
    except OSError as error:
        return Refused(ErrorCode.kafka_storage_error, str(error))
    length = min(max_bytes + READ_AHEAD_BYTES, place.end - place.position)
    data = place.file.read_cached(place.position, length)
    if data is not None:
        taken = take_batches(data, offset, max_bytes, upto)
        if taken is not None:
            return taken
    place.segment.readers += 1
    return ColdRead(lambda: _read_cold(log, place, offset, max_bytes, upto), place.segment.end_read)


def take_batches(data: bytes, offset: int, max_bytes: int, upto: int) -> Slice | None:
    """The wanted batches out of a piece of a segment; None if the piece holds too little or looks damaged, so that
    the thorough path has to decide."""
    view = memoryview(data)
    at, size, first = 0, 0, -1
    next_offset = offset
    while at + HEADER_BYTES <= len(view):
        header = read_header(view, at)
        if header_fault(header, 0) is not None:
            return None
        if header.next_offset > upto:
            break
        end = at + header.size_bytes
        if header.next_offset > offset:
            if first < 0 and end > len(view):
                return None
            if end > len(view) or (first >= 0 and end - first > max_bytes):
                break
            if not crc_matches(view[at:end], header):
                return None
            first = at if first < 0 else first
            size = end - first
            next_offset = header.next_offset
            if size >= max_bytes:
                break
        at = end
    if first < 0:
        return Slice([], 0, offset) if at + HEADER_BYTES <= len(view) else None
    return Slice([view[first : first + size]], size, next_offset)


def _read_cold(log: SegmentedLog, place: Place, offset: int, max_bytes: int, upto: int) -> Slice | Refused:
    """On a disk thread. Walks batch by batch with every check."""
    walk = Walk(place.file, place.position, place.end, verify=True, next_offset=place.offset)
    first = end = -1
    next_offset = offset
    for position, header, _ in walk:
        if header.next_offset > upto or (first >= 0 and position + header.size_bytes - first > max_bytes):
            break
        if header.next_offset > offset:
            first = position if first < 0 else first
            end = position + header.size_bytes
            next_offset = header.next_offset
            if end - first >= max_bytes:
                break
    if first >= 0:
        data = memoryview(place.file.read_at(first, end - first))
        return Slice([data], len(data), next_offset)
    if walk.bad is not None:
        if walk.bad.position == place.position and not _index_is_right(place):
            # The index is an accelerator: a wrong one costs a walk over the segment, never a record.
            from_start = place._replace(position=0, offset=place.segment.base_offset)
            return _read_cold(log, from_start, offset, max_bytes, upto)
        damage = describe_damage(place, walk.bad, walk.next_offset)
        log.add_damage(damage)
        return _refused(damage) if damage.first_offset <= offset < damage.next_offset else Slice([], 0, offset)
    return Slice([], 0, offset)


def _index_is_right(place: Place) -> bool:
    """Whether a batch really begins where the index says: a walk over the headers before it has to arrive there."""
    walk = Walk(place.file, 0, place.position, verify=False)
    for _ in walk:
        pass
    return walk.bad is None and walk.position == place.position


def describe_damage(place: Place, bad: BadBatch, next_offset: int) -> Damage:
    """Finds where intact batches go on after a bad one."""
    first_offset = max(next_offset, place.segment.base_offset)
    found = find_next_valid(place.file, bad.position, place.end, first_offset)
    resumes_at = found.header.base_offset if found is not None else place.following_base
    return Damage(place.segment.path, bad.position, first_offset, max(resumes_at, first_offset + 1), bad.reason)


def _refused(damage: Damage) -> Refused:
    return Refused(ErrorCode.corrupt_message, str(damage))


# -- by time: blocking, on a disk thread; everything is in the segments (the caller waited for that, and holds them) --


class TimedOffset(NamedTuple):
    timestamp_ms: int
    offset: int


def find_offset_for_time(log: SegmentedLog, segments: list[Segment], timestamp_ms: int) -> TimedOffset | None:
    """The first record at or after a time, exact to the record."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        position = segment.index.position_for_time(timestamp_ms)
        for _, header, batch in Walk(segment.reader(), position, segment.written_end, verify=True):
            if header.max_timestamp >= timestamp_ms and header.next_offset > log.start_offset:
                found = _first_in_batch(header, batch, timestamp_ms, log.start_offset)
                if found is not None:
                    return found
    return None


def _first_in_batch(header: BatchHeader, batch: memoryview, timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    found = first_at_or_after(batch, timestamp_ms)
    if found is None:
        return None
    timestamp, offset = found
    return TimedOffset(timestamp, max(offset, start_offset))


def find_max_timestamp(segments: list[Segment]) -> TimedOffset | None:
    """The record with the highest timestamp, the first of them if there are several."""
    candidates = [segment for segment in segments if segment.max_timestamp >= 0]
    if not candidates:
        return None
    segment = max(candidates, key=lambda candidate: candidate.max_timestamp)
    position = segment.index.position_for_time(segment.max_timestamp)
    for _, header, batch in Walk(segment.reader(), position, segment.written_end, verify=True):
        if header.max_timestamp == segment.max_timestamp:
            found = max_timestamp_record(batch)
            return TimedOffset(*found) if found is not None else None
    return None
