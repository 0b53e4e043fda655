"""Reads segment files batch by batch and reports damage. Works on Ottla's and on Kafka's files.

It only reads, takes no locks and trusts no data. It is therefore safe on the directory of a running broker, where the
end of the newest file may be a batch that is still being written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ottla.broker.storage.segment import LOG_SUFFIX, OFFSET_SPAN_MAX, segment_name
from ottla.protocol.records.batch import HEADER_BYTES, MAGIC, BatchHeader, crc_matches, read_header

SCAN_BYTES = 1024 * 1024
BATCH_BYTES_MAX = 1 << 30
_SEGMENT = re.compile(r"\d{20}" + re.escape(LOG_SUFFIX))


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """An intact batch and its position."""

    path: Path
    position: int
    header: BatchHeader
    data: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect in a log.

    `kind` is damage, gap (missing offsets) or unfinished (the torn end of the newest file).
    """

    kind: str
    path: Path
    position: int
    offset: int
    """The first offset affected."""
    reason: str
    size_bytes: int = 0

    @property
    def is_damage(self) -> bool:
        """False for the torn end of the newest file: a crash leaves it, and the next start truncates it."""
        return self.kind != "unfinished"

    def __str__(self) -> str:
        return f"{self.path}, position {self.position}, offset {self.offset}: {self.reason}"


def find_segments(path: Path) -> list[list[Path]]:
    """Returns the segment files of each partition below a path: a file, a partition directory or a data directory."""
    if path.is_file():
        return [[path]]
    if not path.is_dir():
        raise FileNotFoundError(2, "no such file or directory", str(path))
    by_directory: dict[Path, list[Path]] = {}
    for found in sorted(path.rglob(f"*{LOG_SUFFIX}")):
        if _SEGMENT.fullmatch(found.name):
            by_directory.setdefault(found.parent, []).append(found)
    return list(by_directory.values())


def scan_partition(segments: list[Path]) -> Iterator[ScannedBatch | Problem]:
    """Yields all batches of a partition in order, and the problems between them."""
    expected: int | None = None
    for number, path in enumerate(segments):
        base = _base_offset(path)
        if base is not None and (expected is None or base > expected):
            if expected is not None:
                yield _gap(path, 0, expected, base)
            expected = base
        is_newest = number == len(segments) - 1
        for found in scan_file(path, expected or 0, is_newest=is_newest):
            if isinstance(found, ScannedBatch):
                if expected is not None and found.header.base_offset > expected:
                    yield _gap(path, found.position, expected, found.header.base_offset)
                expected = found.header.next_offset
            yield found


def scan_file(path: Path, expected: int, *, is_newest: bool) -> Iterator[ScannedBatch | Problem]:
    """Yields the batches and problems of one file. After damage, continues with the next intact batch."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        position = 0
        while position < size:
            found = _batch_at(fd, path, position, size, expected)
            if isinstance(found, ScannedBatch):
                yield found
                position += found.header.size_bytes
                expected = found.header.next_offset
                continue
            following = _next_intact(fd, path, position + 1, size, expected)
            end = size if following is None else following
            torn = (
                is_newest and following is None and (found.startswith("the file ends") or _is_zero(fd, position, size))
            )
            kind = "unfinished" if torn else "damage"
            yield Problem(kind, path, position, expected, found, end - position)
            position = end
    finally:
        os.close(fd)


def _batch_at(fd: int, path: Path, position: int, size: int, expected: int) -> ScannedBatch | str:
    """Returns the batch at this position, or the reason why there is none."""
    head = os.pread(fd, HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return "the file ends inside a batch header"
    header = read_header(head)
    if header.magic != MAGIC:
        return f"the magic byte is {header.magic}, expected {MAGIC}"
    if not HEADER_BYTES <= header.size_bytes <= BATCH_BYTES_MAX:
        return f"invalid batch size of {header.size_bytes} bytes"
    if header.base_offset < expected or header.last_offset_delta < 0:
        return f"offsets {header.base_offset} to {header.last_offset} do not follow {expected - 1}"
    if position + header.size_bytes > size:
        return f"the file ends inside a batch of {header.size_bytes} bytes"
    data = os.pread(fd, header.size_bytes, position)
    if len(data) < header.size_bytes:
        return "the file ends inside a batch"
    if not crc_matches(data, header):
        return "the batch does not match its checksum"
    if header.base_offset > expected and _next_one_disagrees(fd, position + header.size_bytes, header, expected):
        return f"the base offset is {header.base_offset}, expected {expected}"
    return ScannedBatch(path, position, header, data)


def _next_one_disagrees(fd: int, position: int, header: BatchHeader, expected: int) -> bool:
    """Returns whether the next batch contradicts a base offset that jumps ahead, which the checksum does not cover."""
    if header.base_offset - expected > OFFSET_SPAN_MAX:
        return True
    head = os.pread(fd, HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return False
    following = read_header(head)
    return following.magic == MAGIC and following.base_offset == expected + header.last_offset_delta + 1


def _next_intact(fd: int, path: Path, position: int, size: int, expected: int) -> int | None:
    """Returns the position of the next intact batch. Candidates are found by the magic byte, the 17th of a header."""
    while position + HEADER_BYTES <= size:
        block = os.pread(fd, SCAN_BYTES, position)
        if len(block) < HEADER_BYTES:
            return None
        at = block.find(MAGIC, 16)
        while at != -1:
            if isinstance(_batch_at(fd, path, position + at - 16, size, expected), ScannedBatch):
                return position + at - 16
            at = block.find(MAGIC, at + 1)
        position += len(block) - 16
    return None


def _is_zero(fd: int, position: int, size: int) -> bool:
    while position < size:
        block = os.pread(fd, SCAN_BYTES, position)
        if not block or block.count(0) != len(block):
            return False
        position += len(block)
    return True


def _base_offset(path: Path) -> int | None:
    return int(path.stem) if path.name == segment_name(int(path.stem) if path.stem.isdigit() else -1) else None


def _gap(path: Path, position: int, expected: int, found: int) -> Problem:
    missing = f"offset {expected} is" if found == expected + 1 else f"offsets {expected} to {found - 1} are"
    return Problem("gap", path, position, expected, f"{missing} missing")
