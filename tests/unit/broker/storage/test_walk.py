"""Scanning the batches of a file whose content is not trusted."""

from __future__ import annotations

import pytest

from ottla.broker.storage.startup.batch_walk import CHUNK_BYTES, BatchWalk, find_next_valid, intact_batches
from ottla.ports import DataFile
from ottla.protocol.records.batch import read_header
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from tests.support.sim_logs import batch_of

BATCHES = [batch_of([b"%d" % number] * 2, base_offset=2 * number) for number in range(5)]
WHOLE = b"".join(BATCHES)
POSITIONS = [sum(map(len, BATCHES[:number])) for number in range(6)]


def file_of(content: bytes) -> DataFile:
    disk = SimDisk(SimClock())
    file = disk.files.open("/data/file", create=True)
    file.write_at(0, [content])
    return file


def walk_of(content: bytes, *, verify: bool = True, **options: int) -> BatchWalk:
    return BatchWalk(file_of(content), 0, len(content), verify=verify, **options)


@pytest.mark.parametrize("verify", [True, False])
def test_every_batch_in_its_place(verify: bool) -> None:
    walk = walk_of(WHOLE, verify=verify, next_offset=0)
    assert [(found.position, found.header) for found in walk] == [
        (position, read_header(batch)) for position, batch in zip(POSITIONS, BATCHES, strict=False)
    ]
    assert walk.bad is None
    assert (walk.position, walk.next_offset) == (len(WHOLE), 10)


def test_batches_across_chunks() -> None:
    batches = [batch_of([b"x" * 70_000], base_offset=number) for number in range(10)]
    assert sum(map(len, batches)) > 2 * CHUNK_BYTES
    assert [bytes(found.batch) for found in walk_of(b"".join(batches))] == batches


def test_a_walk_from_the_middle() -> None:
    walk = BatchWalk(file_of(WHOLE), POSITIONS[3], len(WHOLE), verify=True)
    assert [found.header.base_offset for found in walk] == [6, 8]


@pytest.mark.parametrize(
    ("at", "mask", "reason"),
    [
        (0, 0x80, "negative"),
        (7, 0x01, "base offset"),
        (8, 0x80, "too small"),
        (9, 0x01, "extends past the end"),
        (16, 0x01, "magic"),
        (23, 0x80, "negative"),
    ],
)
def test_a_damaged_header_ends_the_walk_without_a_crc(at: int, mask: int, reason: str) -> None:
    damaged = bytearray(WHOLE)
    damaged[POSITIONS[2] + at] ^= mask
    walk = walk_of(bytes(damaged), verify=False, next_offset=0)
    assert [found.header.base_offset for found in walk] == [0, 2]
    assert walk.bad is not None
    assert walk.bad.position == POSITIONS[2]
    assert reason in walk.bad.reason
    assert walk.next_offset == 4


def test_every_flipped_bit_of_a_batch_is_noticed_with_a_crc() -> None:
    """Only the leader epoch (bytes 12 to 15) is not covered by a checksum."""
    for at in [*range(12), *range(16, len(BATCHES[1]))]:
        for mask in (0x01, 0x80):
            damaged = bytearray(WHOLE)
            damaged[POSITIONS[1] + at] ^= mask
            walk = walk_of(bytes(damaged), next_offset=0)
            assert [found.header.base_offset for found in walk] == [0], (at, mask)
            assert walk.bad is not None
            assert walk.bad.position == POSITIONS[1]


def test_a_file_that_ends_inside_a_batch() -> None:
    for length in range(POSITIONS[2] + 1, POSITIONS[3]):
        walk = walk_of(WHOLE[:length], verify=False)
        assert len(list(walk)) == 2
        assert walk.bad is not None
        assert walk.bad.position == POSITIONS[2]


def test_a_length_is_not_believed_beyond_the_end() -> None:
    """A scan that is given a length beyond the file's end (the file was truncated meanwhile) ends and does not hang."""
    walk = BatchWalk(file_of(WHOLE[: POSITIONS[2] + 30]), 0, len(WHOLE), verify=True)
    assert len(list(walk)) == 2
    assert walk.bad is not None


def test_what_follows_damage_is_found() -> None:
    for garbage in (b"", b"\x02" * 100, bytes(61), b"\xff" * 999, BATCHES[0][:40]):
        content = BATCHES[0] + garbage + b"".join(BATCHES[2:])
        found = find_next_valid(file_of(content), len(BATCHES[0]) - 1, len(content), 2)
        assert found is not None
        assert found.position == len(BATCHES[0]) + len(garbage)
        assert found.header.base_offset == 4


def test_what_follows_damage_is_found_across_chunks() -> None:
    for gap in range(CHUNK_BYTES - 70, CHUNK_BYTES + 70, 7):
        content = bytes(gap - 200) + b"\x02" * 200 + BATCHES[3]
        found = find_next_valid(file_of(content), 0, len(content), 0)
        assert found is not None
        assert found.position == gap


def test_older_offsets_do_not_follow_damage() -> None:
    """Data left over from an earlier use of the file is intact, but not part of the log."""
    content = bytes(10) + BATCHES[1] + BATCHES[4]
    found = find_next_valid(file_of(content), 0, len(content), 6)
    assert found is not None
    assert found.header.base_offset == 8


def test_nothing_follows() -> None:
    content = WHOLE[:-1]
    assert find_next_valid(file_of(content), POSITIONS[4], len(content), 8) is None
    assert find_next_valid(file_of(b""), 0, 0, 0) is None


def test_intact_batches_are_all_that_are() -> None:
    damaged = bytearray(WHOLE)
    for number in (0, 3):
        damaged[POSITIONS[number] + 30] ^= 0xFF
    found = intact_batches(file_of(bytes(damaged)), 0, len(WHOLE), 0)
    assert [bytes(batch) for _, _, batch in found] == [BATCHES[1], BATCHES[2], BATCHES[4]]
