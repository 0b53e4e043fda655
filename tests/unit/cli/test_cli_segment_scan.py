"""Segment files, intact and damaged, as `ottla log` reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.storage.segment import INDEX_SUFFIX, segment_name
from ottla.cli.log.segment_scan import Problem, ScannedBatch, find_segments, scan_partition
from ottla.protocol.records.record import Record, encode_batch


def batch(base_offset: int, count: int = 2) -> bytes:
    rows = [Record(base_offset + index, 0, None, b"value %d" % index) for index in range(count)]
    return bytes(encode_batch(rows, base_offset=base_offset))


def scan(directory: Path, *files: tuple[int, bytes]) -> tuple[list[int], list[Problem]]:
    """Returns the base offsets of the batches in these segment files, and the problems."""
    for base_offset, data in files:
        (directory / segment_name(base_offset)).write_bytes(data)
    (segments,) = find_segments(directory)
    found = list(scan_partition(segments))
    offsets = [each.header.base_offset for each in found if isinstance(each, ScannedBatch)]
    return offsets, [each for each in found if isinstance(each, Problem)]


def test_an_intact_log(tmp_path: Path) -> None:
    offsets, problems = scan(tmp_path, (0, batch(0) + batch(2)), (4, batch(4)), (6, b""))
    assert offsets == [0, 2, 4]
    assert problems == []


@pytest.mark.parametrize("place", [0, 7, 8, 16, 20, 61, -1])
def test_a_flipped_byte_is_found_and_the_rest_is_read(tmp_path: Path, place: int) -> None:
    damaged = bytearray(batch(2))
    damaged[place] ^= 0x40
    offsets, problems = scan(tmp_path, (0, batch(0) + bytes(damaged) + batch(4)))
    assert offsets == [0, 4]
    damage = [each for each in problems if each.kind == "damage"]
    assert [(each.position, each.offset) for each in damage] == [(len(batch(0)), 2)]
    assert damage[0].path.name == segment_name(0)
    assert damage[0].is_damage


def test_a_flipped_byte_in_the_last_batch_is_damage_not_an_end(tmp_path: Path) -> None:
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    offsets, problems = scan(tmp_path, (0, batch(0) + bytes(damaged)))
    assert offsets == [0]
    assert [each.kind for each in problems] == ["damage"]


@pytest.mark.parametrize("length", [1, 30, 61, 70])
def test_a_torn_end_of_the_newest_file_is_a_write_under_way(tmp_path: Path, length: int) -> None:
    offsets, problems = scan(tmp_path, (0, batch(0) + batch(2)[:length]))
    assert offsets == [0]
    assert [each.kind for each in problems] == ["unfinished"]
    assert not problems[0].is_damage


def test_zeroes_at_the_end_are_space_that_was_not_written(tmp_path: Path) -> None:
    _, problems = scan(tmp_path, (0, batch(0) + bytes(5000)))
    assert [each.kind for each in problems] == ["unfinished"]


def test_a_torn_end_of_an_older_file_is_damage(tmp_path: Path) -> None:
    offsets, problems = scan(tmp_path, (0, batch(0) + batch(2)[:-1]), (4, batch(4)))
    assert offsets == [0, 4]
    assert "damage" in [each.kind for each in problems]


def test_a_missing_file_is_a_gap(tmp_path: Path) -> None:
    offsets, problems = scan(tmp_path, (0, batch(0)), (4, batch(4)))
    assert offsets == [0, 4]
    assert [(each.kind, each.offset, each.reason) for each in problems] == [("gap", 2, "offsets 2 to 3 are missing")]


def test_a_batch_that_repeats_offsets_is_damage(tmp_path: Path) -> None:
    offsets, problems = scan(tmp_path, (0, batch(0) + batch(0) + batch(2)))
    assert offsets == [0, 2]
    assert [each.kind for each in problems] == ["damage"]
    assert "do not follow" in problems[0].reason


def test_a_log_may_begin_anywhere(tmp_path: Path) -> None:
    assert scan(tmp_path, (70, batch(70))) == ([70], [])


def test_a_single_file_and_a_whole_data_directory(tmp_path: Path) -> None:
    for name in ("a-0", "a-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / segment_name(0)).write_bytes(batch(0))
    (tmp_path / "a-0" / f"{0:020d}{INDEX_SUFFIX}").write_bytes(b"x")
    (tmp_path / "broker.log").write_bytes(b"not a segment")
    assert len(find_segments(tmp_path)) == 2
    one = tmp_path / "a-1" / segment_name(0)
    assert find_segments(one) == [[one]]
    with pytest.raises(FileNotFoundError):
        find_segments(tmp_path / "nothing")
