"""Allocates the space of segment files ahead of their writes, and frees what is left over when they are full."""

from __future__ import annotations

import errno

from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.segment import ALLOCATION_BYTES_MIN, Segment


def allocate(shared: LogResources, segment: Segment, size_bytes: int, segment_bytes: int) -> None:
    """Allocates space for a batch synchronously: for a segment's first batches, or if the writer outran
    `allocate_ahead`."""
    start, length = segment.next_allocation(segment_bytes)
    missing = segment.appended_end + size_bytes - start
    length = max(length, missing)
    try:
        segment.file.allocate(start, length)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        if shared.recycled is not None:  # files that wait to be recycled are given up
            shared.remove_later(shared.recycled.give_up())
        # The last bytes of a disk still suffice for this batch.
        segment.file.allocate(start, max(missing, ALLOCATION_BYTES_MIN))
        length = max(missing, ALLOCATION_BYTES_MIN)
    segment.allocated_end = start + length


def allocate_ahead(shared: LogResources, segment: Segment, segment_bytes: int) -> None:
    """Allocates space on a disk thread, unless the segment has its full size."""
    if segment.allocated_end >= segment_bytes:
        return
    start, length = segment.next_allocation(segment_bytes)
    segment.allocating = True

    def done(_: None, error: BaseException | None) -> None:
        segment.allocating = False
        if error is None:
            segment.allocated_end = max(segment.allocated_end, start + length)

    file = segment.file
    shared.disk.segment_queue.call(lambda: file.allocate(start, length), done)


def seal_later(shared: LogResources, segment: Segment) -> None:
    """Seals a full segment on a disk thread. Retention must wait until then: the truncation could otherwise hit a
    recycled file."""
    segment.sealing = True

    def sealed(_: None, error: BaseException | None) -> None:
        segment.sealing = False
        if error is not None and not segment.removed:
            shared.report(f"{segment.path}: could not be sealed: {error}")

    def seal() -> None:
        segment.seal()
        segment.persist_index()

    shared.disk.segment_queue.call(seal, sealed)
