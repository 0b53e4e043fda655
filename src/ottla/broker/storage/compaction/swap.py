"""Replaces one or more contiguous segments by a new one. Blocking.

    1. write the new segment beside the old ones, under a temporary name, and sync it and the directory
    2. write an intent file that names the replaced segments: write, sync, rename, sync its directory
    3. remove the old indexes, rename the new segment to the first old one, remove the others, sync the directory
    4. remove the intent file, sync the directory

A crash before step 2 completes leaves the old segments, and the new one is discarded. After step 2, the next start
repeats steps 3 and 4, whatever part of step 3 the directory kept: each of its actions can be repeated. A log therefore
never has both the old and the new segments, or neither (safety: after-failover).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import crc32c

from ottla.broker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, segment_name
from ottla.ports import FileSystem
from ottla.reach import branch

_FINISHED = branch("a compaction swap is finished at a start", __name__)

COMPACTED_SUFFIX = ".compacted"
"""Suffix of a new segment that has not replaced the old ones yet."""
INTENT_FILE = "swap"
_MAGIC = b"OTLW"
_VERSION = 1
_HEAD = Struct(">4sHIQI")
"""magic, version, CRC of all that follows it, size of the new segment, number of old ones"""
_BASE = Struct(">q")
_CRC_FROM = 10


class IntentUnknownError(OSError):
    """It is unknown whether the intent is durable."""


class Swap(NamedTuple):
    """The contents of the intent file."""

    size_bytes: int
    """Size of the new segment."""
    replaced: tuple[int, ...]
    """Base offsets of the old segments, in order. The new segment begins where the first of them does."""


def compacted_path(directory: str, base_offset: int) -> str:
    """Returns the path of a compacted segment before it replaces the old ones."""
    return f"{directory}/{segment_name(base_offset)}{COMPACTED_SUFFIX}"


def encode_intent(swap: Swap) -> bytes:
    """Returns the content of the intent file, with its CRC: what is replaced, and the size of the new file."""
    bases = b"".join(map(_BASE.pack, swap.replaced))
    head = _HEAD.pack(_MAGIC, _VERSION, 0, swap.size_bytes, len(swap.replaced))
    crc = crc32c.crc32c(head[_CRC_FROM:] + bases)
    return _HEAD.pack(_MAGIC, _VERSION, crc, swap.size_bytes, len(swap.replaced)) + bases


def decode_intent(data: bytes) -> Swap | None:
    """Parses an intent file. Returns None if it is torn or damaged: the swap did not begin."""
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, size_bytes, count = _HEAD.unpack_from(data)
    is_whole = magic == _MAGIC and version == _VERSION and crc32c.crc32c(data[_CRC_FROM:]) == crc
    if not is_whole or not count or len(data) != _HEAD.size + count * _BASE.size:
        return None
    return Swap(size_bytes, tuple(base for (base,) in _BASE.iter_unpack(data[_HEAD.size :])))


def write_intent(files: FileSystem, directory: str, swap: Swap) -> None:
    """Writes the intent, which commits the swap. The new segment is already written and synced."""
    files.sync_dir(directory)
    try:
        files.replace_file(f"{directory}/{INTENT_FILE}", encode_intent(swap))
    except OSError as error:
        _withdraw(files, directory, error)
        raise


def _withdraw(files: FileSystem, directory: str, error: OSError) -> None:
    """Removes an intent that failed to be written. If it survived, the next start would remove segments in favour of a
    new one that was discarded."""
    try:
        _remove(files, f"{directory}/{INTENT_FILE}")
        files.sync_dir(directory)
    except OSError as second:
        raise IntentUnknownError(second.errno, f"{error}, and then {second}") from second


def perform(files: FileSystem, directory: str, swap: Swap) -> None:
    """Carries out the intent, or the remaining part of it."""
    first, *others = swap.replaced
    fresh = compacted_path(directory, first)
    for base in swap.replaced:
        _remove(files, f"{directory}/{segment_name(base)}".removesuffix(LOG_SUFFIX) + INDEX_SUFFIX)
    path = fresh if files.exists(fresh) else f"{directory}/{segment_name(first)}"
    _demand_size(files, path, swap.size_bytes)
    if path == fresh:
        files.rename(fresh, f"{directory}/{segment_name(first)}")
    for base in others:
        _remove(files, f"{directory}/{segment_name(base)}")
    files.sync_dir(directory)
    files.remove(f"{directory}/{INTENT_FILE}")
    files.sync_dir(directory)


def finish(files: FileSystem, directory: str) -> None:
    """Completes a committed swap at start-up, and discards an uncommitted one."""
    names = files.list_dir(directory) if files.exists(directory) else []
    if INTENT_FILE in names:
        swap = decode_intent(files.read_file(f"{directory}/{INTENT_FILE}"))
        if swap is None:
            raise OSError(f"{directory}/{INTENT_FILE} is damaged, so the segments that it replaces are unknown")
        _FINISHED()
        perform(files, directory, swap)
        names = files.list_dir(directory)
    for name in names:
        if name.endswith(COMPACTED_SUFFIX):
            files.remove(f"{directory}/{name}")


def _demand_size(files: FileSystem, path: str, size_bytes: int) -> None:
    """Checks the size of the new segment before any old one is removed."""
    file = files.open(path)
    try:
        found_bytes = file.size()
    finally:
        file.close()
    if found_bytes != size_bytes:
        raise OSError(f"{path} has {found_bytes} bytes, expected {size_bytes}")


def _remove(files: FileSystem, path: str) -> None:
    if files.exists(path):
        files.remove(path)
