"""Opens a file log at start-up, after a clean shutdown or a crash. Blocking.

A `disk` log consists of its segments up to the recovery point plus the journal. Every other byte is truncated, because
only the journal knows what was acknowledged (safety: recovered-log). A `cache` log is read from its recovery point on.
A torn end is truncated, which the class allows. Damage that is followed by intact batches is moved aside and reported,
never truncated silently.
"""

from __future__ import annotations

import errno
from itertools import pairwise, zip_longest
from typing import NamedTuple

from ottla.broker.storage.batch_effects import note_batch
from ottla.broker.storage.compaction.mark import load_mark
from ottla.broker.storage.compaction.swap import finish as finish_swap
from ottla.broker.storage.contract import Damage
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.file_reads import SegmentPosition, describe_damage
from ottla.broker.storage.index import ENTRY_BYTES, SparseIndex
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, REWRITE_SUFFIX, Segment
from ottla.broker.storage.startup.batch_walk import BadBatch, BatchWalk, find_next_valid, intact_batches
from ottla.broker.storage.startup.checkpoint import RecoveryPoint
from ottla.broker.storage.startup.corrupt_epochs import name_wrong_epoch
from ottla.broker.storage.startup.legacy_indexes import rename_legacy_indexes
from ottla.broker.storage.startup.state_file import (
    STATE_FILE,
    LogState,
    decode_state,
    encode_state,
    merged_producers,
    trim_state,
)
from ottla.machines.transactions.partition_table import PartitionTransactions
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import LogKey
from ottla.protocol.model.topic_config import TopicConfig
from ottla.reach import branch

_INDEX_REBUILT = branch("an index is rebuilt at a start", __name__)
_TORN_END = branch("the torn end of a cache log is truncated", __name__)
_DAMAGED = branch("damage of a segment is found at a start", __name__)
_STATE_TRIMMED = branch("producer states ahead of their log are rebuilt", __name__)
_STATE_DAMAGED = branch("a damaged state file is rebuilt from the segments", __name__)
_SET_APART = branch("a segment behind a gap is set apart", __name__)
_UNACKNOWLEDGED = branch("segment bytes above the recovery point are cleared or truncated", __name__)

DAMAGED_SUFFIX = ".damaged"


class LogOpenContext(NamedTuple):
    """The context of opening one log."""

    shared: LogResources
    directory: str
    config: TopicConfig
    now_ms: int
    damages: list[Damage]

    def segment(self, base_offset: int) -> Segment:
        """Returns a segment of the log with this base offset, before its file is examined."""
        return Segment(
            self.shared.disk.files, self.directory, base_offset, self.config.index_interval_bytes, self.now_ms
        )


def open_file_log(
    shared: LogResources,
    key: LogKey,
    directory: str,
    config: TopicConfig,
    point: RecoveryPoint | None,
    *,
    trust_checkpoint: bool = True,
    up_to_point: bool = False,
) -> FileLog:
    """Opens a log. `trust_checkpoint` is False if the checkpoint itself was lost: then even a `disk` log is read and
    verified. With `up_to_point`, everything above the recovery point is truncated in every class, because the log is
    being truncated."""
    opening = LogOpenContext(shared, directory, config, shared.clock.now_ms(), [])
    files = shared.disk.files
    rename_legacy_indexes(files, directory)
    finish_swap(files, directory)
    names = files.list_dir(directory) if files.exists(directory) else []
    for name in names:
        if name.endswith(REWRITE_SUFFIX):
            files.remove(f"{directory}/{name}")
    bases = sorted(int(name.removesuffix(LOG_SUFFIX)) for name in names if name.endswith(LOG_SUFFIX))
    if point is not None and point == (point.offset, point.offset, 0, point.offset):
        bases = _without_what_was_reset(opening, bases, point.offset)
    state = _read_state(opening)
    bases = _without_passed(opening, bases, min(point.start_offset, state.offset) if point is not None else 0)
    if up_to_point or (config.durability is Durability.DISK and trust_checkpoint):
        segments = _open_up_to(opening, bases, point, keeps_space=not up_to_point)
    else:
        if point is not None and bases == [point.segment_base]:
            bases = _without_passed_end(opening, bases, point, state.offset)
        segments = _open_verified(opening, bases, point, any_start=not trust_checkpoint)
    start_offset = point.start_offset if point is not None else segments[0].base_offset
    _name_gaps(opening, segments, start_offset)
    state_offset = state.offset
    if state_offset > segments[-1].end_offset:
        state = _trim_state(opening, state, segments)
    state = _complete_state(opening, state, segments, start_offset)
    log = FileLog(shared, key, directory, config, segments, state, start_offset)
    log.durable.recovery_point = point
    log.durable.state_offset = min(state_offset, state.offset)
    log.durable.compacted_end = load_mark(files, directory, log.end_offset)
    for damage in opening.damages:
        log.damages.record(damage)
    return log


def _without_what_was_reset(opening: LogOpenContext, bases: list[int], offset: int) -> list[int]:
    """Removes the remains of a log that was reset to the offset: its old state, and its segments below the offset."""
    for base in bases:
        if base < offset:
            _remove(opening, base)
    path = f"{opening.directory}/{STATE_FILE}"
    files = opening.shared.disk.files
    state = decode_state(files.read_file(path)) if files.exists(path) else None
    if state is not None and state.offset != offset:
        files.remove(path)
    return [base for base in bases if base >= offset]


def _without_passed(opening: LogOpenContext, bases: list[int], left_behind: int) -> list[int]:
    """Removes segments that lie entirely below the log's start and are covered by the state file. A crash may have
    interrupted their removal."""
    passed = [base for base, following in pairwise(bases) if following <= left_behind]
    for base in passed:
        _remove(opening, base)
    return bases[len(passed) :]


def _without_passed_end(
    opening: LogOpenContext, bases: list[int], point: RecoveryPoint, state_offset: int
) -> list[int]:
    """Does the same for the only remaining file, after a power cut lost the names of those that followed. It was not
    synced if only the start had moved, so its contents prove nothing."""
    (base,) = bases
    is_passed = point.offset <= min(point.start_offset, state_offset)
    file = opening.shared.disk.files.open(opening.segment(base).path)
    try:
        is_passed = is_passed and file.size() <= point.position
    finally:
        file.close()
    if is_passed:
        _remove(opening, base)
    return [] if is_passed else bases


def _name_gaps(opening: LogOpenContext, segments: list[Segment], start_offset: int) -> None:
    """Reports gaps between segments. From the log's start on, segments are contiguous. The records of a missing segment
    are recorded as damage, so that no reader skips them silently."""
    expected = start_offset
    for segment in segments:
        known = any(d.first_offset <= expected and d.next_offset >= segment.base_offset for d in opening.damages)
        if segment.base_offset > expected and not known:
            path = opening.segment(expected).path
            reason = f"the segment is missing, the next one begins at offset {segment.base_offset}"
            opening.damages.append(Damage(path, 0, expected, segment.base_offset, reason))
        expected = max(expected, segment.end_offset)


# -- disk: exactly the part that the checkpoint covers ----------------------------------------------------------------


def _open_up_to(
    opening: LogOpenContext, bases: list[int], point: RecoveryPoint | None, *, keeps_space: bool
) -> list[Segment]:
    """Opens segments up to the recovery point. With `keeps_space`, the last segment keeps the space of the truncated
    part, because the journal's entries will fill it again and a full disk might have no other."""
    if point is None:
        for base in bases:
            _remove(opening, base)
        return [opening.segment(0)]
    segments: list[Segment] = []
    followers = dict(pairwise(bases))
    for base in bases:
        if base > point.segment_base:
            _remove(opening, base)
            continue
        segment = opening.segment(base)
        size = segment.file.size()
        if base < point.segment_base:
            _load(opening, segment, size, followers.get(base))
        else:
            if size > point.position:
                _UNACKNOWLEDGED()
            has_space = size > point.position and keeps_space and _clear(segment, point.position, size)
            if size > point.position and not has_space:
                _cut(segment, point.position)
            _load(opening, segment, min(size, point.position), point.offset)
            if has_space:
                segment.adopt_space(size)
        segments.append(segment)
    return _complete_to(opening, segments, point)


def _complete_to(opening: LogOpenContext, segments: list[Segment], point: RecoveryPoint) -> list[Segment]:
    """Completes the segments up to the recovery point. If they end before it, a file was removed or truncated: that is
    damage, as far as it lies above the log's start. Expired segments may be gone in any order."""
    end_offset = segments[-1].end_offset if segments else point.start_offset
    have = max(end_offset, point.start_offset)
    if have < point.offset:
        path = segments[-1].path if segments else opening.segment(point.segment_base).path
        position = segments[-1].appended_end if segments else 0
        reason = f"the file ends here, but {point.offset - have} more offsets had been synced"
        opening.damages.append(Damage(path, position, have, point.offset, reason))
    if not segments or end_offset < point.offset:
        segments.append(opening.segment(point.offset))
    return segments


# -- cache: everything that verifies -------------------------------------------------------------------------------


def _open_verified(
    opening: LogOpenContext, bases: list[int], point: RecoveryPoint | None, *, any_start: bool
) -> list[Segment]:
    segments: list[Segment] = []
    # If the checkpoint's first segment is gone, the others do not connect to the log's start.
    known = (0, 0) if point is None else (point.segment_base, point.start_offset)
    intact = any_start or not bases or bases[0] <= max(known)
    followers = dict(pairwise(bases))
    for base in bases:
        segment = opening.segment(base)
        # Segments that no checkpoint covers must be contiguous: a power cut may have lost the end of the previous one.
        is_covered = point is not None and base <= point.segment_base
        if not intact or (segments and not is_covered and segments[-1].end_offset != base):
            intact = False
            _set_apart(opening, segment)
            continue
        size = segment.file.size()
        covered, following = 0, None
        if point is not None and base < point.segment_base:
            covered, following = size, followers.get(base)
        elif point is not None and base == point.segment_base:
            covered, following = min(point.position, size), point.offset
        _load(opening, segment, covered, following)
        segment.entry_durable = covered > 0
        intact = _verify_rest(opening, segment, covered, size)
        segments.append(segment)
    if point is not None:
        return _complete_to(opening, segments, point)
    return segments or [opening.segment(0)]


def _verify_rest(opening: LogOpenContext, segment: Segment, covered: int, size: int) -> bool:
    """Verifies the part of a segment that no checkpoint covers. False if the following segments cannot belong to the
    log any more."""
    walk = BatchWalk(segment.file, covered, size, verify=True, next_offset=segment.end_offset)
    for _, header, batch in walk:
        segment.append(header, len(batch))
    segment.written_end = segment.allocated_end = segment.appended_end
    if segment.appended_end == size:
        return True
    _TORN_END()
    bad_at = segment.appended_end
    is_damaged = find_next_valid(segment.file, bad_at, size, segment.end_offset) is not None
    if is_damaged:
        _keep_rest_apart(opening, segment, size, walk.bad.reason if walk.bad else "unreadable")
    _cut(segment, bad_at)
    # Otherwise it is a torn end, or the space and old bytes that a sealed segment did not release. The next segment
    # belongs to the log if it continues here.
    return not is_damaged


def _clear(segment: Segment, position: int, size: int) -> bool:
    """Zeroes a range durably, so that the segment keeps its space. False if even that needs space that is not
    available."""
    try:
        segment.file.clear(position, size - position)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    segment.file.sync()
    return True


def _cut(segment: Segment, position: int) -> None:
    """Truncates a segment durably: bytes restored by the next power cut would stand where other data is expected."""
    segment.file.truncate(position)
    segment.file.sync()


def _keep_rest_apart(opening: LogOpenContext, segment: Segment, size: int, reason: str) -> None:
    files = opening.shared.disk.files
    path = f"{segment.path}.{segment.appended_end}{DAMAGED_SUFFIX}"
    files.replace_file(path, segment.file.read_at(segment.appended_end, size - segment.appended_end))
    opening.shared.report(
        f"{segment.path} is damaged at position {segment.appended_end}, offset {segment.end_offset}: {reason}. "
        f"The damaged part and the intact batches after it are kept in {path}; the log continues from before "
        "the damage."
    )


def _set_apart(opening: LogOpenContext, segment: Segment) -> None:
    files = opening.shared.disk.files
    if segment.file.size() > 0:
        _SET_APART()
        files.rename(segment.path, segment.path + DAMAGED_SUFFIX)
        opening.shared.report(f"{segment.path} follows a damaged segment; it is kept as {segment.path}{DAMAGED_SUFFIX}")
    else:
        files.remove(segment.path)
    segment.close()


# -- one segment ---------------------------------------------------------------------------------------------------


def _load(opening: LogOpenContext, segment: Segment, size: int, following_base: int | None = None) -> None:
    """Loads a segment's index from its file, and completes it from the batch headers.

    A sealed segment ends where the next one begins, and the last segment ends at the recovery point. Beyond that, a
    recycled file that was not truncated yet holds data of an older segment.
    """
    files = opening.shared.disk.files
    if files.exists(segment.index_path):
        data = files.read_file(segment.index_path)
        segment.index = SparseIndex.parse(data, opening.config.index_interval_bytes, size)
        if len(data) > len(segment.index) * ENTRY_BYTES:
            _cut_index(opening, segment)
    next_offset = segment.base_offset
    last = segment.index.last_entry()
    if last is not None and not _index_agrees(segment, last):
        _INDEX_REBUILT()
        segment.index = SparseIndex(opening.config.index_interval_bytes)
        last = None
    if last is not None:
        segment.index.truncate(last[1])
        segment.appended_end = last[1]
        segment.max_timestamp = last[2]
        next_offset = segment.base_offset + last[0]
    _take_headers(opening, segment, size, next_offset, following_base)
    segment.written_end = segment.synced_end = segment.allocated_end = segment.appended_end
    # A checkpoint of an empty segment says nothing about its file, which may have been created afterwards.
    segment.entry_durable = size > 0


def _cut_index(opening: LogOpenContext, segment: Segment) -> None:
    """Truncates the index durably, like the segment: old entries could otherwise reappear for new batches at the same
    place."""
    file = opening.shared.disk.files.open(segment.index_path)
    try:
        file.truncate(len(segment.index) * ENTRY_BYTES)
        file.sync()
    finally:
        file.close()


def _index_agrees(segment: Segment, last: tuple[int, int, int]) -> bool:
    walk = BatchWalk(segment.file, last[1], segment.file.size(), verify=False)
    first = next(iter(walk), None)
    return first is not None and first.header.base_offset == segment.base_offset + last[0]


def _take_headers(
    opening: LogOpenContext, segment: Segment, size: int, next_offset: int, following_base: int | None
) -> None:
    start, max_timestamp = segment.appended_end, segment.max_timestamp
    walk = BatchWalk(segment.file, start, size, verify=False, next_offset=next_offset)
    if _take_all(segment, walk, following_base) and segment.appended_end == size:
        return
    # A wrong length shows at the next header. Checking each batch against its CRC tells which one is damaged.
    segment.index.truncate(start)
    segment.appended_end, segment.end_offset, segment.max_timestamp = start, next_offset, max_timestamp
    position = start
    while position < size:
        walk = BatchWalk(segment.file, position, size, verify=True, next_offset=next_offset)
        if _take_all(segment, walk, following_base) or walk.bad is None:
            return
        following = segment.end_offset + 1 if following_base is None else following_base
        place = SegmentPosition(segment, segment.file, 0, segment.base_offset, size, following)
        _DAMAGED()
        opening.damages.append(describe_damage(place, walk.bad, walk.next_offset))
        intact = find_next_valid(segment.file, walk.bad.position, size, walk.next_offset, following_base)
        position = size
        if intact is not None:
            position, next_offset = intact.position, intact.header.base_offset
    segment.appended_end = size


def _take_all(segment: Segment, walk: BatchWalk, following_base: int | None) -> bool:
    """Reports whether the walk reached the end of the segment: the start of the next one, or else the end of its
    bytes."""
    for found in walk:
        segment.appended_end = found.position
        segment.append(found.header, found.header.size_bytes)
        if found.header.next_offset == following_base:
            return True
    return walk.bad is None and following_base is None


def _remove(opening: LogOpenContext, base_offset: int) -> None:
    files = opening.shared.disk.files
    path = opening.segment(base_offset).path
    files.remove(path)
    index_path = path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
    if files.exists(index_path):
        files.remove(index_path)


# -- epochs and producers ------------------------------------------------------------------------------------------


def _read_state(opening: LogOpenContext) -> LogState:
    files = opening.shared.disk.files
    path = f"{opening.directory}/{STATE_FILE}"
    if not files.exists(path):
        return LogState()
    state = decode_state(files.read_file(path))
    if state is None:
        _STATE_DAMAGED()
        opening.shared.report(f"{path} is damaged; leader epochs and producer states are rebuilt from the segments")
        return LogState()
    return state


def _trim_state(opening: LogOpenContext, state: LogState, segments: list[Segment]) -> LogState:
    """Rebuilds a state that describes batches which are gone. It is learned again from the segments and written at
    once, because the log will grow past the old state's offset with other batches. Its entries for producers whose
    segments have expired are kept."""
    _STATE_TRIMMED()
    trimmed = trim_state(state, segments[-1].end_offset)
    learned = _complete_state(opening, LogState(), segments, 0)
    transactions = _merged(learned.transactions, trimmed.transactions, trimmed.offset)
    producers = merged_producers(learned.producers, trimmed.producers)
    state = LogState(trimmed.offset, trimmed.epochs, producers, transactions)
    path = f"{opening.directory}/{STATE_FILE}"
    data = encode_state(state.offset, state.epochs, state.producers, state.transactions)
    opening.shared.with_reserve(lambda: opening.shared.disk.files.replace_file(path, data))
    return state


def _merged(learned: PartitionTransactions, trimmed: PartitionTransactions, end_offset: int) -> PartitionTransactions:
    """Merges transactions. Entries of the trimmed state are unchanged and take precedence, as does its index of aborted
    transactions. All other producers come from the segments."""
    merged = PartitionTransactions({**dict(learned), **dict(trimmed)}.items(), learned.ended, end_offset)
    merged.aborted = trimmed.aborted
    return merged


def _complete_state(opening: LogOpenContext, state: LogState, segments: list[Segment], start_offset: int) -> LogState:
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.end_offset > state.offset:
            _note_batches(opening, segment, state, segment.end_offset if following is None else following.base_offset)
    state.epochs.truncate_before(start_offset)
    return state


def _note_batches(opening: LogOpenContext, segment: Segment, state: LogState, following_base: int) -> None:
    """Adds the batches of a segment to the state. A batch that cannot be read is reported as damage: the state of its
    producer is unknown here, so this replica must not decide what is a retry while there is a better one."""
    relative, position = segment.index.entry_for_offset(max(state.offset - segment.base_offset, 0))
    place = SegmentPosition(segment, segment.file, 0, segment.base_offset, segment.written_end, following_base)

    def name_damage(bad: BadBatch, next_offset: int) -> None:
        opening.damages.append(describe_damage(place, bad, next_offset))

    first_offset = segment.base_offset + relative
    previous_offset = -1
    for found in intact_batches(segment.file, position, segment.written_end, first_offset, on_bad=name_damage):
        header = found.header
        if header.base_offset < state.offset:
            continue
        if header.leader_epoch < state.epochs.latest:
            opening.damages.append(name_wrong_epoch(segment.path, found, previous_offset, state))
        note_batch(header, found.batch, state)
        previous_offset = header.base_offset
